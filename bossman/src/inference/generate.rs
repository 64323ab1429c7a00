//! Text from a language model, token by token, across the workers.

use crate::data::{LoadedTokenizer, Text};
use crate::inference::sampling::{Sampler, Sampling};
use crate::session::boss::BossMan;
use crate::{BossManError, Model};
use layerspec::{Dim, LayerId};
use pipeline::cached::Cached;
use tch::Tensor;
use tensor::TensorError;

/// The settings of the text to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Its prompt.
    pub prompt: String,
    /// The most tokens to add.
    pub max_new_tokens: u64,
    /// How each is drawn.
    pub sampling: Sampling,
}

/// Text that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// The text after the prompt.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
}

/// A language model at work. Every worker keeps the keys and values of the positions so far, so
/// each token takes one position through the stages. If a layer must see the whole sequence, the
/// whole sequence goes forward each time.
pub struct Generator {
    tokens: LoadedTokenizer,
    /// The token after which nothing follows.
    end: Option<u32>,
    /// The layers that go on from what workers remember; or why some layer cannot.
    growing: Result<Vec<LayerId>, String>,
    /// The most positions that the model is given: those it was trained with.
    most: usize,
}

/// The part of the text that the model sees.
#[derive(Default)]
struct Window {
    start: usize,
    /// The number of its tokens that the workers cache.
    seen: usize,
}

impl Generator {
    /// For a model whose input are tokens as [`Text`] makes them.
    ///
    /// # Errors
    /// The model has not one input of token sequences of any length, or the tokenizer cannot be read.
    pub fn new(model: &Model, text: &Text) -> Result<Self, BossManError> {
        let graph = model.graph();
        let [input] = graph.inputs() else {
            let count = graph.inputs().len();
            let problem = format!("text is made by a model with one input, of tokens; this one has {count}");
            return Err(BossManError::Usage(problem));
        };
        if let Some(Dim::Fixed(size)) = graph.value(*input).ty.dims().get(1) {
            let problem =
                format!("the model's input has {size} positions; give their number a name, as `seq`, in the model");
            return Err(BossManError::Usage(problem));
        }
        if let Some(Dim::Fixed(rows @ 2..)) = graph.value(*input).ty.dims().first() {
            let problem = format!(
                "the model's input has batches of {rows}, but one text is made at a time; write a word as `batch` for the \
                 size in the model"
            );
            return Err(BossManError::Usage(problem));
        }
        let tokens = LoadedTokenizer::load(&text.tokenizer)?;
        let end = text.eos.as_ref().map(|name| tokens.special_token("eos", name)).transpose()?;
        let growing = graph.growing(&[*input]).map_err(|needs| needs.to_string());
        let most = usize::try_from(text.sequence_length).unwrap_or(usize::MAX);
        Ok(Generator { tokens, end, growing, most })
    }

    /// Why every token takes the whole sequence through the stages again; nothing where it does not.
    pub fn slow(&self) -> Option<&str> {
        self.growing.as_ref().err().map(String::as_str)
    }

    /// The text that follows the prompt, piece by piece as it comes.
    ///
    /// # Errors
    /// A worker failed, a setting is out of its range, or the model does not give a logit for each token and position.
    pub async fn generate(
        &self,
        boss: &mut BossMan,
        what: &Generation,
        mut piece: impl FnMut(&str),
    ) -> Result<Generated, BossManError> {
        what.sampling.check()?;
        let mut tokens = Vec::new();
        self.tokens.encode(&what.prompt, &mut tokens)?;
        if tokens.is_empty() {
            return Err(BossManError::Usage("the prompt has no token to begin with; give some text".into()));
        }
        let begun = tokens.len();
        let mut sampler = what.sampling.sampler();
        let mut said = String::new();
        let mut window = Window::default();
        for _ in 0..what.max_new_tokens {
            let token = self.next(boss, &tokens, &mut window, &mut sampler).await?;
            if Some(token) == self.end {
                break;
            }
            tokens.push(token);
            // Text that may still change is held back.
            let text = self.after(&tokens, begun)?;
            let sure = text.trim_end_matches('\u{fffd}');
            if let Some(more) = sure.strip_prefix(said.as_str()).filter(|more| !more.is_empty()) {
                piece(more);
                said = sure.to_string();
            }
        }
        let text = self.after(&tokens, begun)?;
        if let Some(rest) = text.strip_prefix(said.as_str()) {
            piece(rest);
        }
        tokens.drain(..begun);
        Ok(Generated { text, tokens })
    }

    /// The text after the prompt. Decoded with it, for a character may be several tokens, and some tokenizers leave out a space
    /// where a text begins.
    fn after(&self, tokens: &[u32], begun: usize) -> Result<String, BossManError> {
        let (prompt, whole) = (self.tokens.decode(&tokens[..begun])?, self.tokens.decode(tokens)?);
        Ok(match whole.strip_prefix(prompt.as_str()) {
            Some(rest) => rest.to_string(),
            None => self.tokens.decode(&tokens[begun..])?,
        })
    }

    /// Takes what the workers have not seen through the stages, and draws from what comes out at its last position.
    async fn next(
        &self,
        boss: &mut BossMan,
        tokens: &[u32],
        window: &mut Window,
        sampler: &mut Sampler,
    ) -> Result<u32, BossManError> {
        if tokens.len() - window.start > self.most {
            // The oldest tokens are dropped and half of the window is read again, so that this is
            // rare.
            *window = Window { start: tokens.len() - self.most.div_ceil(2), seen: 0 };
        }
        let visible = &tokens[window.start..];
        let (new, cached) = match &self.growing {
            Ok(layers) => {
                let cached = Cached { past: window.seen as u64, rows: Vec::new(), layers: layers.clone() };
                (&visible[window.seen..], Some(cached))
            }
            Err(_) => (visible, None),
        };
        let input: Vec<i64> = new.iter().map(|token| i64::from(*token)).collect();
        let input = Tensor::f_from_slice(&input).and_then(|row| row.f_unsqueeze(0)).map_err(TensorError::from)?;
        let output = boss.forward_cached(&[input], cached).await?;
        window.seen = visible.len();
        let logits = last_logits(&output, new.len())?.f_select(0, 0).map_err(TensorError::from)?;
        Ok(sampler.draw(&logits)?)
    }
}

/// `[batch, vocabulary]`: those of the last position.
pub(crate) fn last_logits(output: &Tensor, positions: usize) -> Result<Tensor, BossManError> {
    let size = output.size();
    match size[..] {
        [_, _, found] if usize::try_from(found) == Ok(positions) => {
            Ok(output.f_select(2, found - 1).map_err(TensorError::from)?)
        }
        _ => {
            let problem = format!(
                "the model gives {size:?} for {positions} positions; expected [batch, vocabulary, positions], as \
                 CrossEntropyLoss takes it"
            );
            Err(BossManError::Usage(problem))
        }
    }
}
