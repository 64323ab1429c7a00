use super::arguments::{bad, OPTIONAL_SIZE};
use super::attention::{AttentionDims, Sequence};
use super::{layer, Arity, BadArgument, Rules};
use crate::yaml::{FLAG, PROBABILITY, SIZE};
use crate::{Dim, Init, OutOfRange, ParamSpec, TensorType};

layer! {
    /// Attention of the positions of its first input, the query, to those of a key, which give what
    /// a value holds there (Vaswani et al. 2017, arXiv:1706.03762). Inputs: the query alone, which
    /// attends to itself, or query, key and value; then the masks that its arguments tell of, in
    /// their order. Output: what is attended to, projected, without the weights.
    MultiheadAttention {
        /// Size of the last dimension of query and output.
        embed_dim: u64 = SIZE;
        /// Number of heads, which share `embed_dim` equally.
        num_heads: u64 = SIZE;
        /// Probability that an attention weight is set to zero.
        dropout: f64 = PROBABILITY, or 0.0;
        /// Whether projections add a learned bias.
        bias: bool = FLAG, or true;
        /// Size of the last dimension of the key; `null` is `embed_dim`.
        kdim: Option<u64> = OPTIONAL_SIZE, or None => "null";
        /// Size of the last dimension of the value; `null` is `embed_dim`.
        vdim: Option<u64> = OPTIONAL_SIZE, or None => "null";
        /// Whether inputs are `[batch, seq, size]`, and not `[seq, batch, size]`.
        batch_first: bool = FLAG, or false;
        /// Whether a further input tells for each query and key: `[queries, keys]`, the same for
        /// each sample, or for each head of each sample (`[batch*num_heads, queries, keys]`). Of
        /// bool, true is not attended to; numbers are added to the scores.
        attn_mask: bool = FLAG, or false;
        /// Whether there is a further input, a mask `[batch, keys]` of bool. True excludes a key
        /// from attention.
        key_padding_mask: bool = FLAG, or false;
        /// Whether a query attends to no key at a later position. It needs no mask.
        is_causal: bool = FLAG, or false;
        /// Not PyTorch's: number of heads of keys and values for grouped-query attention (Ainslie
        /// et al. 2023, arXiv:2305.13245); `null` is `num_heads`. Their projections are narrower
        /// accordingly.
        num_key_value_heads: Option<u64> = OPTIONAL_SIZE, or None => "null";
    }
    unsupported {
        add_bias_kv: "no key or value is added; leave it out";
        add_zero_attn: "no key or value is added; leave it out";
    }
}

impl MultiheadAttention {
    /// Size of the last dimensions of key and value.
    pub fn sources(&self) -> [u64; 2] {
        [self.kdim.unwrap_or(self.embed_dim), self.vdim.unwrap_or(self.embed_dim)]
    }

    /// Heads of keys and values.
    pub fn key_value_heads(&self) -> u64 {
        self.num_key_value_heads.unwrap_or(self.num_heads)
    }

    /// Width of the projected keys, and of the values.
    pub fn key_value_width(&self) -> u64 {
        self.embed_dim
            .checked_div(self.num_heads)
            .unwrap_or(0)
            .saturating_mul(self.key_value_heads())
    }

    /// Whether the three projections are one matrix, which needs inputs of one width.
    pub fn is_packed(&self) -> bool {
        self.sources() == [self.embed_dim; 2]
    }

    /// The names of the inputs that are masks.
    fn masks(&self) -> Vec<&'static str> {
        let masks = [(self.attn_mask, "attn_mask"), (self.key_padding_mask, "key_padding_mask")];
        masks.into_iter().filter_map(|(given, name)| given.then_some(name)).collect()
    }

    /// The sizes of the attention, and the masks.
    fn dims<'a>(
        &self,
        inputs: &'a [TensorType],
    ) -> Result<(AttentionDims<'a>, &'a [TensorType]), String> {
        let of = |index: usize, called: &str, argument: &str, width: u64| {
            let input = inputs.get(index).ok_or("expected an input")?;
            Sequence::expect(input, called, self.batch_first, argument, width)
        };
        let query = of(0, "query", "embed_dim", self.embed_dim)?;
        let [key_size, value_size] = self.sources();
        let sources = inputs.len().saturating_sub(self.masks().len());
        if sources < 3 {
            if !self.is_packed() {
                return Err("its `kdim` or `vdim` is not `embed_dim`, so a key and a value must \
                            follow the query; name them in `in_variables: [..]`"
                    .into());
            }
            return Ok((AttentionDims::between(query, query, self.num_heads)?, &inputs[sources..]));
        }
        let key = of(1, "key", "kdim", key_size)?;
        let value = of(2, "value", "vdim", value_size)?;
        if (key.samples, key.positions) != (value.samples, value.positions) {
            let (key, value) = (&inputs[1], &inputs[2]);
            return Err(format!(
                "expected a key and a value for the same positions, found {key} and {value}"
            ));
        }
        Ok((AttentionDims::between(query, key, self.num_heads)?, &inputs[sources..]))
    }
}

impl Rules for MultiheadAttention {
    fn arity(&self) -> Arity {
        let with_masks = |sources: &[&'static str]| [sources, &self.masks()].concat();
        Arity::Named(vec![with_masks(&["query"]), with_masks(&["query", "key", "value"])])
    }

    fn check(&self) -> Result<(), BadArgument> {
        if self.embed_dim.checked_rem(self.num_heads) != Some(0) {
            return Err(bad("num_heads", format!("a divisor of embed_dim ({})", self.embed_dim)));
        }
        if self.num_heads.checked_rem(self.key_value_heads()) != Some(0) {
            return Err(bad(
                "num_key_value_heads",
                format!("a divisor of num_heads ({})", self.num_heads),
            ));
        }
        Ok(())
    }

    fn mixes_outermost(&self) -> bool {
        !self.batch_first
    }

    fn params(&self) -> Vec<ParamSpec> {
        let (width, narrow) = (self.embed_dim, self.key_value_width());
        // Too large a size stays too large, and the number of elements says so.
        let all = width.saturating_add(narrow.saturating_mul(2));
        let matrix = |name, rows, columns| {
            ParamSpec::parameter(name, vec![rows, columns], Init::xavier(rows, columns))
        };
        let [of_key, of_value] = self.sources();
        let mut params = match self.is_packed() {
            true => vec![matrix("in_proj_weight", all, width)],
            false => vec![
                matrix("q_proj_weight", width, width),
                matrix("k_proj_weight", narrow, of_key),
                matrix("v_proj_weight", narrow, of_value),
            ],
        };
        if self.bias {
            params.push(ParamSpec::parameter("in_proj_bias", vec![all], Init::Zeros));
        }
        params.push(ParamSpec::parameter(
            "out_proj.weight",
            vec![width, width],
            Init::fan_in(width as f64),
        ));
        if self.bias {
            params.push(ParamSpec::parameter("out_proj.bias", vec![width], Init::Zeros));
        }
        params
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let (dims, masks) = self.dims(inputs)?;
        for (name, mask) in self.masks().into_iter().zip(masks) {
            match name {
                "attn_mask" => dims.expect_mask(mask, name)?,
                _ => dims.expect_padding_mask(mask, name)?,
            }
        }
        Ok(vec![inputs[0].clone()])
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> Result<Dim, OutOfRange> {
        let (dims, _) = self.dims(inputs).map_err(|_| OutOfRange)?;
        let width = Dim::Fixed(self.embed_dim);
        let [of_key, of_value] = self.sources().map(Dim::Fixed);
        // For each query its own projection and the last one, for each key two.
        let of_query = width.times(&width)?.times_number(4)?;
        let of_source =
            of_key.plus(&of_value)?.times_number(2)?.times_number(self.key_value_width())?;
        let projections =
            dims.queries.positions.times(&of_query)?.plus(&dims.keys.times(&of_source)?)?;
        dims.queries.samples.times(&projections)?.plus(&dims.flops(self.embed_dim)?)
    }
}
