//! A module whose fields are its stages.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Data, DeriveInput, Error, Expr, Field, Fields, GenericArgument, Ident, LitStr, Path,
    PathArguments, Token, Type,
};

pub(crate) fn expand(input: DeriveInput) -> Result<TokenStream, Error> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(input.ident.span(), "stages are the fields of a struct, one after the other"));
    };
    let Fields::Named(fields) = &data.fields else {
        return Err(Error::new(
            input.ident.span(),
            "stages have the names of their fields: give the fields names",
        ));
    };
    let ends: Ends = match one(&input.attrs, "stages")? {
        Some(attribute) => attribute.parse_args()?,
        None => {
            return Err(Error::new(
                input.ident.span(),
                "say what goes in and comes out: #[stages(Tensor<2> => Tensor<2>)]",
            ));
        }
    };
    let mut stages = Vec::new();
    for field in &fields.named {
        if let Some(attribute) = one(&field.attrs, "stage")? {
            let asked = match &attribute.meta {
                syn::Meta::Path(_) => Asked::default(),
                _ => attribute.parse_args()?,
            };
            stages.push(Stage::new(field, asked)?);
        }
    }
    if stages.is_empty() {
        return Err(Error::new(
            input.ident.span(),
            "no field is a stage: write #[stage] above those that are",
        ));
    }
    let (name, Ends { from, to, policy }) = (&input.ident, &ends);
    let (implement, types, clause) = input.generics.split_for_impl();
    let added = stages.iter().map(Stage::add);
    let clauses = stages.iter().flat_map(Stage::clauses);
    let start = match policy.as_ref().map(LitStr::value).as_deref() {
        None | Some("recompute-all") => quote!(::rekindle::Policy::recompute_all()),
        Some("keep-all") => quote!(::rekindle::Policy::keep_all()),
        Some(other) => {
            let words =
                format!("`{other}` is no start of a policy, expected \"recompute-all\" or \"keep-all\"");
            return Err(Error::new_spanned(policy, words));
        }
    };
    Ok(quote! {
        impl #implement #name #types #clause {
            /// The fields that are stages, in their order.
            pub fn region(&self) -> ::rekindle::Region<#from, #to> {
                ::rekindle::Region::new() #(#added)*
            }

            /// What the attributes of the stages say.
            pub fn policy() -> ::rekindle::Policy {
                #start #(#clauses)*
            }
        }

        impl #implement ::rekindle::Staged for #name #types #clause {
            type Batch = #from;
            type Input = #from;
            type Output = #to;

            fn stages(&self, batch: &#from) -> (::rekindle::Region<#from, #to>, #from) {
                (self.region(), ::core::clone::Clone::clone(batch))
            }
        }
    })
}

/// The attribute of this name; there may be one.
fn one<'a>(attributes: &'a [Attribute], name: &str) -> Result<Option<&'a Attribute>, Error> {
    let mut found = attributes.iter().filter(|attribute| attribute.path().is_ident(name));
    let first = found.next();
    match found.next() {
        Some(second) => {
            Err(Error::new_spanned(second, format!("#[{name}] stands here twice, expected once")))
        }
        None => Ok(first),
    }
}

/// `Tensor<2> => Tensor<2>`, and perhaps what a policy starts from.
struct Ends {
    from: Type,
    to: Type,
    policy: Option<LitStr>,
}

impl Parse for Ends {
    fn parse(input: ParseStream<'_>) -> Result<Self, Error> {
        let from = input.parse()?;
        input.parse::<Token![=>]>()?;
        let to = input.parse()?;
        let mut policy = None;
        if input.parse::<Option<Token![,]>>()?.is_some() && !input.is_empty() {
            let name: Ident = input.parse()?;
            if name != "policy" {
                return Err(Error::new(name.span(), "expected policy = \"recompute-all\" or \"keep-all\""));
            }
            input.parse::<Token![=]>()?;
            policy = Some(input.parse()?);
        }
        Ok(Self { from, to, policy })
    }
}

/// What the attribute of a field asks for.
#[derive(Default)]
struct Asked {
    name: Option<LitStr>,
    run: Option<Path>,
    /// Methods of a policy, and what they take beside a pattern.
    clauses: Vec<(Ident, Option<LitStr>)>,
}

impl Parse for Asked {
    fn parse(input: ParseStream<'_>) -> Result<Self, Error> {
        let mut asked = Self::default();
        for argument in Punctuated::<Argument, Token![,]>::parse_terminated(input)? {
            let Argument { name, value } = argument;
            let text = |value: Option<Expr>| match value {
                Some(Expr::Lit(literal)) => match literal.lit {
                    syn::Lit::Str(text) => Ok(text),
                    other => Err(Error::new_spanned(other, format!("expected {name} = \"..\""))),
                },
                _ => Err(Error::new(name.span(), format!("expected {name} = \"..\""))),
            };
            match (name.to_string().as_str(), value) {
                ("name", value) => asked.name = Some(text(value)?),
                ("run", Some(Expr::Path(path))) => asked.run = Some(path.path),
                ("run", _) => return Err(Error::new(name.span(), "expected run = Type::function")),
                ("keep" | "pin" | "recompute", None) => asked.clauses.push((name, None)),
                ("keep" | "pin" | "recompute", Some(_)) => {
                    return Err(Error::new(name.span(), format!("{name} takes no value")));
                }
                ("offload" | "compress" | "tape", value) => {
                    let text = text(value)?;
                    asked.clauses.push((name, Some(text)));
                }
                _ => {
                    let words = "expected name, run, keep, pin, recompute, offload, compress or tape";
                    return Err(Error::new(name.span(), words));
                }
            }
        }
        Ok(asked)
    }
}

/// `keep`, or `offload = "disk"`.
struct Argument {
    name: Ident,
    value: Option<Expr>,
}

impl Parse for Argument {
    fn parse(input: ParseStream<'_>) -> Result<Self, Error> {
        let name = input.parse()?;
        let value = match input.parse::<Option<Token![=]>>()? {
            Some(_) => Some(input.parse()?),
            None => None,
        };
        Ok(Self { name, value })
    }
}

struct Stage<'a> {
    field: &'a Ident,
    /// The type of a module.
    module: &'a Type,
    /// Whether the field is many of them.
    many: bool,
    name: String,
    asked: Asked,
}

impl<'a> Stage<'a> {
    fn new(field: &'a Field, asked: Asked) -> Result<Self, Error> {
        let Some(ident) = &field.ident else {
            return Err(Error::new_spanned(field, "a stage has the name of its field: give it one"));
        };
        let (module, many) = match element(&field.ty) {
            Some(element) => (element, true),
            None => (&field.ty, false),
        };
        let name = asked.name.as_ref().map_or_else(|| ident.to_string(), LitStr::value);
        Ok(Self { field: ident, module, many, name, asked })
    }

    fn add(&self) -> TokenStream {
        let Self { field, module, name, .. } = self;
        let run = match &self.asked.run {
            Some(path) => quote!(#path),
            None => quote!(|module: &#module, input| module.forward(input)),
        };
        match self.many {
            true => quote!(.stages(#name, &self.#field, #run)),
            false => quote!(.stage(#name, &self.#field, #run)),
        }
    }

    fn clauses(&self) -> Vec<TokenStream> {
        let pattern = if self.many { format!("{}.*", self.name) } else { self.name.clone() };
        let clauses = self.asked.clauses.iter().map(|(method, value)| match value {
            Some(value) => quote!(.#method(#pattern, #value)),
            None => quote!(.#method(#pattern)),
        });
        clauses.collect()
    }
}

/// What a list is a list of.
fn element(list: &Type) -> Option<&Type> {
    match list {
        Type::Array(array) => Some(&array.elem),
        Type::Path(path) => {
            let last = path.path.segments.last().filter(|segment| segment.ident == "Vec")?;
            match &last.arguments {
                PathArguments::AngleBracketed(arguments) => match arguments.args.first()? {
                    GenericArgument::Type(element) => Some(element),
                    _ => None,
                },
                _ => None,
            }
        }
        _ => None,
    }
}
