use super::arguments::{expect_floating, OPTIONAL_NUMBER};
use super::join::{broadcast, expect_same_dtype};
use super::{layer, Arity, Rules};
use crate::yaml::{FLAG, PROBABILITY};
use crate::{DType, Dim, OutOfRange, TensorType};

layer! {
    /// Attention without projections, PyTorch's `scaled_dot_product_attention`. Inputs: query, key
    /// and value `[.., heads, seq, size]`; a fourth input is a mask that broadcasts to
    /// `[.., heads, queries, keys]`. Of bool, true takes part; numbers are added to the scores. A
    /// single head of key and value serves all heads of the query.
    ScaledDotProductAttention {
        /// Probability that an attention weight is set to zero while training.
        dropout_p: f64 = PROBABILITY, or 0.0;
        /// Whether a query attends to no key at a later position. It excludes a mask.
        is_causal: bool = FLAG, or false;
        /// The factor of the scores; `null` is one by the root of the size of a query.
        scale: Option<f64> = OPTIONAL_NUMBER, or None => "null";
        /// Whether several heads of key and value may each serve several heads of the query.
        enable_gqa: bool = FLAG, or false;
    }
    unsupported { attn_mask: "name the mask as the fourth input in `in_variables: [..]`"; }
}

/// The dimensions of an input.
struct Heads<'a> {
    batch: &'a [Dim],
    heads: &'a Dim,
    positions: &'a Dim,
    width: &'a Dim,
}

impl<'a> Heads<'a> {
    fn of(input: &'a TensorType, name: &str) -> Result<Self, String> {
        expect_floating(input)?;
        match input.dims() {
            [batch @ .., heads, positions, width] => Ok(Heads { batch, heads, positions, width }),
            _ => Err(format!("expected a {name} [.., heads, seq, size], found {input}")),
        }
    }
}

/// Query, key and value.
fn sources(inputs: &[TensorType]) -> Result<([Heads<'_>; 3], &[TensorType]), String> {
    let [query, key, value, mask @ ..] = inputs else {
        return Err("expected a query, a key and a value".into());
    };
    expect_same_dtype(query, key)?;
    expect_same_dtype(query, value)?;
    let sources = [Heads::of(query, "query")?, Heads::of(key, "key")?, Heads::of(value, "value")?];
    Ok((sources, mask))
}

impl ScaledDotProductAttention {
    fn expect_heads(&self, queries: &Dim, keys: &Dim) -> Result<(), String> {
        let shared = || queries.as_fixed()?.checked_rem(keys.as_fixed()?);
        let is_one = *keys == Dim::Fixed(1);
        if queries == keys || is_one || (self.enable_gqa && shared() == Some(0)) {
            return Ok(());
        }
        let with = match self.enable_gqa {
            true => "in a multiple of the key's number",
            false => "as many as of the key, or a key of one head (see `enable_gqa`)",
        };
        Err(format!("expected heads of the query {with}, found {queries} and {keys}"))
    }

    fn expect_mask(
        &self,
        mask: &TensorType,
        query: &TensorType,
        scores: &[Dim],
    ) -> Result<(), String> {
        if self.is_causal {
            return Err("expected no mask, because `is_causal` is one".into());
        }
        let fits = mask.shape.rank() >= 2
            && broadcast(scores, mask.dims()).is_ok_and(|dims| dims == scores);
        if fits && (mask.dtype == DType::Bool || mask.dtype == query.dtype) {
            return Ok(());
        }
        let scores = TensorType::new(query.dtype, scores.to_vec());
        Err(format!("expected a mask that broadcasts to {scores}, or one of bool, found {mask}"))
    }
}

impl Rules for ScaledDotProductAttention {
    fn arity(&self) -> Arity {
        let sources = vec!["query", "key", "value"];
        let with_mask = vec!["query", "key", "value", "attn_mask"];
        Arity::Named(vec![sources, with_mask])
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let ([query, key, value], mask) = sources(inputs)?;
        let misfit = |expected: &str| {
            let (query, key, value) = (&inputs[0], &inputs[1], &inputs[2]);
            Err(format!("expected {expected}, found {query}, {key} and {value}"))
        };
        if query.width != key.width {
            return misfit("a query and a key of one size");
        }
        if (key.heads, key.positions) != (value.heads, value.positions) {
            return misfit("a key and a value for the same heads and positions");
        }
        if query.batch != key.batch || query.batch != value.batch {
            return misfit("inputs for the same samples");
        }
        self.expect_heads(query.heads, key.heads)?;
        let each = [query.heads.clone(), query.positions.clone()];
        if let Some(mask) = mask.first() {
            let scores = [query.batch, &each, std::slice::from_ref(key.positions)].concat();
            self.expect_mask(mask, &inputs[0], &scores)?;
        }
        let dims = [query.batch, &each, std::slice::from_ref(value.width)].concat();
        Ok(vec![TensorType::new(inputs[0].dtype, dims)])
    }

    /// For each query and key of a head: the products of the score and of the value, a softmax (5)
    /// and dropout (2).
    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        let ([query, key, value], _) = sources(inputs).map_err(|_| OutOfRange)?;
        let each = query.width.plus(value.width)?.times_number(2)?.plus_number(5 + 2)?;
        let sizes = [query.heads, query.positions, key.positions, &each];
        Dim::product(query.batch.iter().chain(sizes))
    }
}
