//! `#[derive(Boundary)]` and `#[derive(Stages)]`, re-exported by the crate `rekindle`.

mod stages;

use proc_macro::TokenStream;
use quote::quote;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Fields, Index, parse_macro_input, parse_quote};

/// Makes a struct a boundary: its fields cross from stage to stage in the order they are declared.
///
/// Every field must be a boundary itself.
#[proc_macro_derive(Boundary)]
pub fn derive_boundary(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(input).unwrap_or_else(|error| error.to_compile_error()).into()
}

/// Makes a module's fields its stages, one after the other, and what their attributes say a policy.
///
/// `#[stages(Input => Output)]` above the struct says what goes in and comes out; `, policy = "keep-all"` starts the policy
/// from keeping everything, not from recomputing it. `#[stage]` above a field makes it a stage of the field's name, that
/// runs `forward`; a `Vec` or array becomes a stage for each, `name.0`, `name.1` and so on. In its parentheses:
///
/// | says | means |
/// |---|---|
/// | `name = "block"` | another name |
/// | `run = Type::function` | another function of the module and its input |
/// | `keep` | what it makes stays on the device |
/// | `offload = "disk"`, `compress = "bf16"` | what it makes waits there, or smaller |
/// | `pin` | it keeps its whole tape, and is never run again |
/// | `tape = "balanced"` | it keeps its tape under that option |
/// | `recompute` | it keeps no tape, and is run again |
///
/// The struct gets `region()`, `policy()`, and the trait `Staged`, whose batch is the input.
#[proc_macro_derive(Stages, attributes(stages, stage))]
pub fn derive_stages(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    stages::expand(input).unwrap_or_else(|error| error.to_compile_error()).into()
}

fn expand(input: DeriveInput) -> Result<proc_macro2::TokenStream, Error> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(
            input.ident.span(),
            "a boundary is a struct: which tensors cross must not depend on an enum's variant; use `Option` fields",
        ));
    };
    if let Some(lifetime) = input.generics.lifetimes().next() {
        return Err(Error::new(
            lifetime.span(),
            "a boundary owns its tensors: it outlives the stage that made it",
        ));
    }
    let name = &input.ident;
    let mut generics = input.generics.clone();
    for parameter in input.generics.type_params() {
        let parameter = &parameter.ident;
        let clause = generics.make_where_clause();
        clause.predicates.push(parse_quote!(#parameter: ::rekindle::Boundary));
    }
    let (implement, types, clause) = generics.split_for_impl();
    let fields: Vec<_> = match &data.fields {
        Fields::Named(fields) => {
            let names = fields.named.iter().filter_map(|field| field.ident.as_ref());
            names.map(|name| quote!(#name)).collect()
        }
        Fields::Unnamed(fields) => (0..fields.unnamed.len())
            .map(|index| {
                let index = Index::from(index);
                quote!(#index)
            })
            .collect(),
        Fields::Unit => Vec::new(),
    };
    Ok(quote! {
        impl #implement ::rekindle::Boundary for #name #types #clause {
            fn take_apart(self, parts: &mut ::rekindle::Parts) {
                #(::rekindle::Boundary::take_apart(self.#fields, parts);)*
            }

            fn put_together(
                parts: &mut ::rekindle::PartsReader,
            ) -> ::core::result::Result<Self, ::rekindle::Error> {
                ::core::result::Result::Ok(Self {
                    #(#fields: ::rekindle::Boundary::put_together(parts)?,)*
                })
            }
        }
    })
}
