//! The figures: SVG by hand, for a wide page, a phone and a paper.

pub(crate) mod frontier;
pub(crate) mod memory;
pub(crate) mod timeline;
pub(crate) mod totals;

use std::fmt::Display;

use crate::markup::{Attributes, Markup, Px};
use crate::scale::{self, Scale};
use crate::theme;

/// Where a figure is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// In the page, on a screen with room.
    Wide,
    /// In the page, on a phone: drawn anew rather than shrunk, so that letters stay readable.
    Narrow,
    /// Alone, in light colours that are written into the file.
    Paper,
}

impl Look {
    /// The width, in pixels of the screens it is for.
    pub(crate) fn width(self) -> f64 {
        match self {
            Self::Wide | Self::Paper => 760.0,
            Self::Narrow => 350.0,
        }
    }

    /// What tells apart the marks of one figure in several looks on one page.
    fn suffix(self) -> &'static str {
        match self {
            Self::Wide => "wide",
            Self::Narrow => "narrow",
            Self::Paper => "paper",
        }
    }

    pub(crate) fn is_narrow(self) -> bool {
        self == Self::Narrow
    }
}

/// A finished figure.
pub(crate) struct Drawing {
    pub(crate) svg: String,
    /// What is too thin to be seen was drawn together.
    pub(crate) thinned: bool,
}

/// A figure under construction.
pub(crate) struct Canvas {
    pub(crate) markup: Markup,
    name: &'static str,
    look: Look,
}

impl Canvas {
    /// Starts a figure of this height. `summary` is what it shows, for who cannot see it.
    pub(crate) fn new(name: &'static str, summary: &str, height: f64, look: Look) -> Self {
        let mut markup = Markup::default();
        let (width, class) = (Px(look.width()), format!("figure {}", look.suffix()));
        let view = format!("0 0 {width} {}", Px(height));
        let height = Px(height);
        let paper = look == Look::Paper;
        match paper {
            true => markup.open(
                "svg",
                &[
                    ("xmlns", &"http://www.w3.org/2000/svg"),
                    ("width", &width),
                    ("height", &height),
                    ("viewBox", &view),
                    ("class", &class),
                    ("role", &"img"),
                    ("aria-label", &summary),
                ],
            ),
            false => markup.open(
                "svg",
                &[
                    ("viewBox", &view),
                    ("class", &class),
                    ("role", &"img"),
                    ("tabindex", &"0"),
                    ("aria-label", &summary),
                ],
            ),
        };
        if paper {
            markup.line().open("style", &[]).own(&theme::figure_style_on_paper()).close("style").line();
            // For who looks at it on a dark screen.
            markup.empty("rect", &[("width", &width), ("height", &height), ("fill", &"#ffffff")]).line();
        }
        Self { markup, name, look }
    }

    /// Stripes for what runs again, so that it can be told without its colour.
    pub(crate) fn stripes(&mut self) {
        let id = self.stripes_id();
        self.markup
            .open("defs", &[])
            .open(
                "pattern",
                &[
                    ("id", &id),
                    ("patternUnits", &"userSpaceOnUse"),
                    ("width", &"4"),
                    ("height", &"4"),
                    ("patternTransform", &"rotate(45)"),
                ],
            )
            .empty("rect", &[("class", &"again"), ("width", &"4"), ("height", &"4")])
            .empty("rect", &[("class", &"stripe"), ("width", &"1.2"), ("height", &"4")])
            .close("pattern")
            .close("defs");
    }

    fn stripes_id(&self) -> String {
        format!("{}-{}-again", self.name, self.look.suffix())
    }

    /// A rectangle that says what it is when it is pointed at.
    pub(crate) fn mark(&mut self, class: &'static str, area: Area, words: &str) {
        let (x, y, width, height) = (Px(area.x), Px(area.y), Px(area.width), Px(area.height));
        let fill = self.fill(class);
        let class = format!("mark {class}");
        let shape: Attributes<'_> =
            &[("class", &class), ("x", &x), ("y", &y), ("width", &width), ("height", &height)];
        match &fill {
            Fill::Class(_) => self.markup.open("rect", shape),
            Fill::Stripes(_) => self.markup.open("rect", &[shape, &[fill.attribute()]].concat()),
        };
        self.markup.element("title", &[], words).close("rect").line();
    }

    /// A line from one place to another.
    pub(crate) fn line(&mut self, class: &'static str, from: (f64, f64), to: (f64, f64)) {
        let path = format!("M{} {}L{} {}", Px(from.0), Px(from.1), Px(to.0), Px(to.1));
        self.path(class, &path);
    }

    /// A path.
    pub(crate) fn path(&mut self, class: &'static str, path: &str) {
        self.markup.empty("path", &[("class", &class), ("d", &path)]).line();
    }

    /// Words in a figure.
    pub(crate) fn label(&mut self, class: &'static str, anchor: Anchor, at: (f64, f64), words: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (x, y) = (Px(at.0), Px(at.1));
        self.markup
            .element("text", &[("class", &class), ("x", &x), ("y", &y), ("text-anchor", &anchor)], words)
            .line();
    }

    /// A legend at the top, in as many lines as it needs.
    pub(crate) fn legend(&mut self, items: &[(Swatch, &'static str)], top: f64) {
        for ((swatch, words), (x, line)) in items.iter().zip(legend_places(items, self.look)) {
            let y = top + 10.0 + LEGEND_LINE * line as f64;
            match swatch {
                Swatch::Fill(class) => {
                    let fill = self.fill(class);
                    let (x, y) = (Px(x), Px(y - 9.0));
                    self.markup.empty(
                        "rect",
                        &[fill.attribute(), ("x", &x), ("y", &y), ("width", &"16"), ("height", &"10")],
                    );
                }
                Swatch::Line(class) => self.line(class, (x, y - 4.0), (x + 16.0, y - 4.0)),
            }
            self.label("words", Anchor::Start, (x + 22.0, y), words);
        }
    }

    fn fill(&self, class: &str) -> Fill {
        match class {
            "again" => Fill::Stripes(format!("fill:url(#{})", self.stripes_id())),
            class => Fill::Class(class.to_owned()),
        }
    }

    /// The figure.
    pub(crate) fn finish(mut self, thinned: bool) -> Drawing {
        self.markup.close("svg");
        Drawing { svg: self.markup.finish(), thinned }
    }
}

/// A rectangle's place.
#[derive(Clone, Copy)]
pub(crate) struct Area {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

/// Which end of a label lies at its place.
#[derive(Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// How an item of a legend looks.
#[derive(Clone, Copy)]
pub(crate) enum Swatch {
    Fill(&'static str),
    Line(&'static str),
}

/// What fills a rectangle: the colour of its class, or stripes, which are a fill of their own.
enum Fill {
    Class(String),
    Stripes(String),
}

impl Fill {
    fn attribute(&self) -> (&'static str, &dyn Display) {
        match self {
            Self::Class(class) => ("class", class),
            Self::Stripes(style) => ("style", style),
        }
    }
}

const LEGEND_LINE: f64 = 17.0;

/// How high the legend is, with some air below it.
pub(crate) fn legend_height(items: &[(Swatch, &'static str)], look: Look) -> f64 {
    let lines = legend_places(items, look).last().map_or(0, |(_, line)| line + 1);
    LEGEND_LINE * lines as f64
}

/// Where the items of a legend lie: how far right, and in which line.
fn legend_places(items: &[(Swatch, &'static str)], look: Look) -> Vec<(f64, usize)> {
    let (mut x, mut line) = (0.0, 0);
    let mut places = Vec::with_capacity(items.len());
    for (_, words) in items {
        let width = 22.0 + words_width(words);
        if x > 0.0 && x + width > look.width() {
            (x, line) = (0.0, line + 1);
        }
        places.push((x, line));
        x += width + 16.0;
    }
    places
}

/// About how wide words are: no font is known when the figure is drawn.
pub(crate) fn words_width(words: &str) -> f64 {
    words.chars().count() as f64 * 6.0
}

/// The frame in which values are drawn.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) left: f64,
    pub(crate) right: f64,
    pub(crate) top: f64,
    pub(crate) bottom: f64,
}

impl Frame {
    /// The vertical axis: lines across the frame, each with its number, and the unit on top.
    pub(crate) fn vertical_axis(&self, canvas: &mut Canvas, scale: &Scale, unit: (f64, &str), wanted: usize) {
        for tick in scale.ticks(unit.0, wanted) {
            let y = scale.at(tick);
            canvas.line("grid", (self.left, y), (self.right, y));
            let words = scale::label(tick, unit.0);
            canvas.label("number", Anchor::End, (self.left - 6.0, y + 4.0), &words);
        }
        canvas.label("unit", Anchor::End, (self.left - 6.0, self.top - 8.0), unit.1);
    }

    /// The horizontal axis: a line with ticks, each with its number, and words about it at the end.
    pub(crate) fn horizontal_axis(&self, canvas: &mut Canvas, scale: &Scale, unit: (f64, &str), words: &str) {
        canvas.line("axis", (self.left, self.bottom), (self.right, self.bottom));
        let wanted = if self.right - self.left > 400.0 { 8 } else { 4 };
        for tick in scale.ticks(unit.0, wanted) {
            let x = scale.at(tick);
            canvas.line("axis", (x, self.bottom), (x, self.bottom + 4.0));
            let number = scale::label(tick, unit.0);
            canvas.label("number", Anchor::Middle, (x, self.bottom + 16.0), &number);
        }
        let words = format!("{words}, {}", unit.1);
        canvas.label("unit", Anchor::End, (self.right, self.bottom + 32.0), words.trim_end_matches(", "));
    }
}
