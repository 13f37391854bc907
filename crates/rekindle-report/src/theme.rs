//! The colours, once for every place they are used in.

/// A colour by its name in the style, in light and in dark.
pub(crate) struct Colour {
    name: &'static str,
    light: &'static str,
    dark: &'static str,
}

const fn colour(name: &'static str, light: &'static str, dark: &'static str) -> Colour {
    Colour { name, light, dark }
}

/// Every colour. Hues that stay apart for colour-blind eyes; contrasts are held by a test.
const COLOURS: [Colour; 21] = [
    colour("paper", "#fdfdfb", "#15171a"),
    colour("card", "#f3f3ee", "#1f2226"),
    colour("ink", "#1c1e21", "#e8e6e1"),
    colour("muted", "#5a5f66", "#a5abb3"),
    colour("rule", "#dddcd5", "#363a40"),
    colour("accent", "#1a5f9c", "#7cbcf0"),
    colour("forward", "#1f6fb2", "#5aa9e6"),
    colour("again", "#c8550a", "#f0883e"),
    colour("stripe", "#f2b48a", "#8a3d06"),
    colour("backward", "#24805a", "#4fc08d"),
    colour("transfer", "#8a4fa3", "#c58fdc"),
    colour("tape", "#78838f", "#7f8b97"),
    colour("kept", "#8f6d1c", "#d1a94a"),
    colour("predicted", "#1f6fb2", "#5aa9e6"),
    colour("measured", "#b3245e", "#f07aa6"),
    colour("budget", "#3a3d42", "#cfcdc7"),
    colour("part-1", "#44607e", "#93adc8"),
    colour("part-2", "#24805a", "#4fc08d"),
    colour("part-3", "#8f6d1c", "#d1a94a"),
    colour("part-4", "#1f6fb2", "#5aa9e6"),
    colour("part-5", "#8a8379", "#9a948b"),
];

/// The style of figures, wherever they are.
const FIGURE: &str = include_str!("page/figure.css");
/// The style of the page around them.
const PAGE: &str = include_str!("page/page.css");

/// The style of the page, light or dark as the reader's system is. Paper is light.
pub(crate) fn page_style() -> String {
    let list = |pick: fn(&Colour) -> &'static str| {
        COLOURS.iter().map(|colour| format!("--{}:{};", colour.name, pick(colour))).collect::<String>()
    };
    let (light, dark) = (list(|colour| colour.light), list(|colour| colour.dark));
    format!(
        "\n:root{{color-scheme:light dark;{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{FIGURE}{PAGE}"
    )
}

/// The style of a figure that stands alone: programs that set papers know no variables.
pub(crate) fn figure_style_on_paper() -> String {
    COLOURS.iter().fold(FIGURE.to_owned(), |style, colour| {
        let light = if colour.name == "paper" { "#ffffff" } else { colour.light };
        style.replace(&format!("var(--{})", colour.name), light)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The relative luminance of WCAG 2.
    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.040_45 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    fn contrast(left: &str, right: &str) -> f64 {
        let (left, right) = (luminance(left), luminance(right));
        (left.max(right) + 0.05) / (left.min(right) + 0.05)
    }

    #[test]
    fn words_and_marks_stand_out_in_light_and_dark() {
        for pick in [|colour: &Colour| colour.light, |colour: &Colour| colour.dark] {
            let of = |name: &str| pick(COLOURS.iter().find(|colour| colour.name == name).unwrap());
            for ground in ["paper", "card"] {
                for words in ["ink", "muted", "accent"] {
                    let found = contrast(of(words), of(ground));
                    assert!(found >= 4.5, "{words} on {ground}: {found:.2}");
                }
                // Of marks, WCAG asks for 3.
                for colour in COLOURS.iter().skip_while(|colour| colour.name != "forward") {
                    let found = contrast(pick(colour), of(ground));
                    assert!(
                        found >= 3.0 || colour.name == "stripe",
                        "{} on {ground}: {found:.2}",
                        colour.name
                    );
                }
            }
        }
    }

    #[test]
    fn a_figure_on_paper_needs_no_variable() {
        assert!(!figure_style_on_paper().contains("var("));
    }

    #[test]
    fn every_variable_is_a_colour_of_the_list() {
        for style in [FIGURE, PAGE] {
            for used in style.split("var(--").skip(1) {
                let name = used.split(')').next().unwrap();
                assert!(COLOURS.iter().any(|colour| colour.name == name), "{name}");
            }
            assert!(!style.contains(['<', '&']), "a page is well-formed XML as well");
        }
    }
}
