//! `bossman generate` and `bossman translate`: text from models.

use super::fleet::{until_interrupted, Fleet};
use super::run_argument::{Reads, TrainedRun};
use anyhow::{Context, Result};
use bossman::data::{Part, Source, TextPairs};
use bossman::output;
use bossman::{
    BossMan, BossManError, Generated, Generation, Generator, Sampling, Search, Translator,
};
use std::io::BufRead;
use std::time::Instant;
use tokio::sync::oneshot;

/// Lines that are translated together.
const BATCH_SIZE: usize = 32;

#[derive(clap::Args)]
#[command(after_help = "Example: bossman generate run.yaml --local 2 --weights w.safetensors \
                        --prompt \"My fellow citizens\" --temperature 0.8 --top-k 40")]
pub(crate) struct Generate {
    #[command(flatten)]
    run: TrainedRun,
    #[command(flatten)]
    fleet: Fleet,
    /// The beginning of the text.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: String,
    /// The most tokens to add.
    #[arg(long, value_name = "N", default_value_t = 200)]
    max_new_tokens: u64,
    /// The divisor of the logits. 0 takes the likeliest token each time.
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = not_negative,
        allow_negative_numbers = true)]
    temperature: f64,
    /// Draw from this number of likeliest tokens.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    top_k: Option<u32>,
    /// Draw from the likeliest tokens that together have this probability.
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = share)]
    top_p: f64,
    /// The seed of random draws. The same seed gives the same text.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  bossman translate run.yaml --local 2 --weights \
                        w.safetensors \"Good morning.\"\n  bossman translate run.yaml --local 2 \
                        --weights w.safetensors --beams 4 < english.txt > german.txt")]
pub(crate) struct Translate {
    #[command(flatten)]
    run: TrainedRun,
    /// Texts to translate [default: the lines of standard input]
    texts: Vec<String>,
    #[command(flatten)]
    fleet: Fleet,
    /// The number of unfinished translations to follow. 1 is greedy.
    #[arg(long, value_name = "N", default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..=256))]
    beams: u32,
    /// A translation's log probability is divided by ((5 + tokens) / 6) to this power.
    #[arg(long, value_name = "A", default_value_t = 0.6, value_parser = not_negative)]
    length_penalty: f64,
    /// The most tokens of a translation.
    #[arg(long, value_name = "N", default_value_t = 128,
        value_parser = clap::value_parser!(u64).range(1..))]
    max_length: u64,
}

fn not_negative(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| *number >= 0.0 && number.is_finite());
    number.ok_or_else(|| "expected a number, 0 or more".into())
}

fn share(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| *number > 0.0 && *number <= 1.0);
    number.ok_or_else(|| "expected more than 0, and 1 at most".into())
}

impl Generate {
    pub(crate) fn run(self) -> Result<()> {
        let (file, weights) = self.run.open(Reads::Data)?;
        let file = file.with_data_at_boss();
        let Some(text) = file.text() else {
            anyhow::bail!(
                "generate needs a run file whose `train` is `text`, for its tokenizer, or with the \
                 key `tokenizer`"
            );
        };
        let sampling = Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            seed: self.seed,
        };
        let what =
            Generation { prompt: self.prompt, max_new_tokens: self.max_new_tokens, sampling };
        let fleet = self.fleet.settings();
        until_interrupted("the text ends here", async {
            let mut boss = file.load_model(&fleet, weights.as_deref()).await?;
            let generator = Generator::new(boss.model(), &text)?;
            if let Some(why) = generator.why_not_incremental() {
                output::warn(&format!(
                    "every token takes the whole text through the model again: {why}"
                ));
            }
            let unseen = generator.unseen_tokens(&what.prompt)?;
            if unseen > 0 {
                output::warn(&format!(
                    "warning: the model does not see the first {unseen} tokens of the prompt, \
                     which is longer than `sequence_length` or the model's positions"
                ));
            }
            let began = Instant::now();
            if let Some(made) = stream_text(&generator, &mut boss, &what).await? {
                output::print_line("")?;
                let seconds = began.elapsed().as_secs_f64();
                let tokens = made.tokens.len();
                output::warn(&format!(
                    "{tokens} tokens, {:.1} a second",
                    tokens as f64 / seconds.max(1e-9)
                ));
            }
            boss.shutdown().await;
            Ok(())
        })
    }
}

/// Prints the text piece by piece. Returns nothing if standard output has lost its reader, because
/// generation then stops.
async fn stream_text(
    generator: &Generator,
    boss: &mut BossMan,
    what: &Generation,
) -> Result<Option<Generated>, BossManError> {
    if !output::print(&what.prompt)? {
        return Ok(None);
    }
    let (stop, stopped) = oneshot::channel();
    let mut stop = Some(stop);
    let made = generator.generate(boss, what, |piece| match output::print(piece) {
        Ok(true) => {}
        closed => drop(stop.take().map(|stop| stop.send(closed))),
    });
    tokio::select! {
        made = made => made.map(Some),
        Ok(closed) = stopped => closed.map(|_| None),
    }
}

impl Translate {
    pub(crate) fn run(self) -> Result<()> {
        let (file, weights) = self.run.open(Reads::Data)?;
        let file = file.with_data_at_boss();
        let texts: &TextPairs = match file.source(Part::Train) {
            Some(Source::Pairs(texts)) => texts,
            _ => anyhow::bail!(
                "translate needs a run file whose `train` is `pairs`, for its tokenizer"
            ),
        };
        let search = Search {
            beams: self.beams,
            length_penalty: self.length_penalty,
            max_length: self.max_length,
        };
        let lines = match self.texts.is_empty() {
            true => std::io::stdin()
                .lock()
                .lines()
                .collect::<Result<_, _>>()
                .context("standard input")?,
            false => self.texts,
        };
        let fleet = self.fleet.settings();
        until_interrupted("not all was translated", async {
            let mut boss = file.load_model(&fleet, weights.as_deref()).await?;
            let translator = Translator::new(boss.model(), texts)?;
            if let Some(why) = translator.why_not_incremental() {
                output::warn(&format!(
                    "every token takes the whole translation through the model again: {why}"
                ));
            }
            for (line, text) in (1..).zip(&lines) {
                let unseen = translator.unseen_tokens(text)?;
                if unseen > 0 {
                    output::warn(&format!(
                        "warning: text {line}: the model does not see the last {unseen} tokens, \
                         which are beyond `max_length` or the model's positions"
                    ));
                }
            }
            'all: for together in lines.chunks(BATCH_SIZE) {
                for translation in translator.translate(&mut boss, together, &search).await? {
                    if !output::print_line(&translation)? {
                        break 'all;
                    }
                }
            }
            boss.shutdown().await;
            Ok(())
        })
    }
}
