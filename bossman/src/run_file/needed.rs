//! Keys that a run file need not have, for commands that need them.

use super::{Data, Length, RunFile};
use crate::data::{Source, Text, Tokenizer};
use crate::BossManError;
use std::path::Path;

/// The length of sequences in an example, if the model takes that many tokens.
const USUAL_LENGTH: u64 = 128;

impl RunFile {
    /// The run's data.
    ///
    /// # Errors
    /// There is none. The error has the lines to add.
    pub fn data(&self) -> Result<&Data, BossManError> {
        self.data.as_ref().ok_or_else(|| self.lacks_data())
    }

    /// The length of training.
    ///
    /// # Errors
    /// The run has no data, so it need not have a length.
    pub fn length(&self) -> Result<Length, BossManError> {
        self.length.ok_or_else(|| self.lacks_data())
    }

    /// The tokenizer of generated texts, their most tokens and their ends: those of the key
    /// `tokenizer`, and where it does not tell them, those of the texts to train on. The ends are
    /// names of tokens, so they count only if both have one tokenizer. `None` if there is neither.
    pub fn text(&self) -> Option<Text> {
        let trained_on = match &self.data {
            Some(Data { train: Source::Text(text), .. }) => Some(text),
            _ => None,
        };
        let Some(chosen) = &self.tokenizer else { return trained_on.cloned() };
        let mut text = chosen.clone();
        if let Some(trained_on) = trained_on {
            if text.sequence_length == u64::MAX {
                text.sequence_length = trained_on.sequence_length;
            }
            if text.eos.is_empty() && is_same(&text.tokenizer, &trained_on.tokenizer) {
                text.eos.clone_from(&trained_on.eos);
            }
        }
        Some(text)
    }

    fn lacks_data(&self) -> BossManError {
        let longest = self.tokenizer.as_ref().map_or(u64::MAX, |text| text.sequence_length);
        let length = longest.min(USUAL_LENGTH);
        let (tokenizer, eos) = match &self.tokenizer {
            Some(Text { tokenizer: Tokenizer::File(path), eos, .. }) => {
                let eos = eos.first().map(|eos| format!(", eos: {eos:?}"));
                (path.display().to_string(), eos.unwrap_or_default())
            }
            _ => ("bytes".into(), String::new()),
        };
        let problem = format!(
            "has no `data`, which this command needs. Add it, and the length of training, as:\n  \
             data: {{train: {{text: {{path: FILE, tokenizer: {tokenizer}, sequence_length: \
             {length}{eos}}}}}}}\n  steps: 100"
        );
        BossManError::file(self.loss_place.file(), problem)
    }
}

/// Whether both are one tokenizer: bytes, or one file by whatever path.
fn is_same(one: &Tokenizer, other: &Tokenizer) -> bool {
    match (one, other) {
        (Tokenizer::File(one), Tokenizer::File(other)) => {
            let whole = |path: &Path| std::fs::canonicalize(path).ok();
            one == other || whole(one).is_some_and(|one| whole(other) == Some(one))
        }
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "model: m.yaml\nloss: MSELoss\noptimizer: {SGD: {lr: 0.1}}\nbatch_size: 4\n";

    fn read(text: &str) -> RunFile {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run.yaml");
        std::fs::write(&path, text).unwrap();
        RunFile::from_file(&path).unwrap()
    }

    #[test]
    fn a_run_without_data_says_which_lines_to_add() {
        let run = read(RUN);
        assert_eq!(run.text(), None);
        for error in [run.data().unwrap_err(), run.length().unwrap_err()] {
            let error = error.to_string();
            assert!(error.contains("run.yaml: has no `data`") && error.contains("\n  steps: 100"));
            assert!(error.contains("sequence_length: 128"), "{error}");
        }
        let short = read(&format!("{RUN}tokenizer: {{path: t.json, sequence_length: 64}}\n"));
        let error = short.data().unwrap_err().to_string();
        assert!(error.contains("sequence_length: 64"), "{error}");
        let steps = read(&format!("{RUN}steps: 5\ntokenizer: bytes\n"));
        assert_eq!(steps.length().unwrap(), Length::Steps(5));
        assert_eq!(steps.text().unwrap().tokenizer, Tokenizer::Bytes);
    }

    #[test]
    fn it_is_written_and_read_back() {
        let more = "tokenizer: {path: t.json, sequence_length: 64, eos: <end>}\n";
        let texts = [
            RUN.to_string(),
            format!("{RUN}tokenizer: t.json\nepochs: 2\n"),
            RUN.to_string() + more,
            RUN.to_string() + &more.replace("<end>", "[<end>, <turn>]"),
        ];
        for text in texts {
            let run = read(&text).with_absolute_paths().unwrap();
            assert_eq!(read(&run.to_yaml()), run);
        }
    }

    #[test]
    fn the_tokenizer_tells_more_about_generated_texts_than_the_texts_to_train_on() {
        let of = |trained_on: &str, tokenizer: &str| {
            let text = format!("{{path: a.txt, {trained_on}sequence_length: 8, eos: <a>}}");
            let data = format!("data: {{train: {{text: {text}}}}}\nsteps: 1\n");
            let text = read(&format!("{RUN}{data}{tokenizer}")).text().unwrap();
            let name = match text.tokenizer {
                Tokenizer::File(path) => path.file_name().map(|name| name.to_owned()),
                Tokenizer::Bytes => None,
            };
            (name.and_then(|name| name.into_string().ok()), text.sequence_length, text.eos)
        };
        let t = || Some("t.json".to_string());
        let a = || vec!["<a>".to_string()];
        assert_eq!(of("", ""), (None, 8, a()));
        assert_eq!(of("", "tokenizer: bytes\n"), (None, 8, a()));
        assert_eq!(of("tokenizer: t.json, ", "tokenizer: t.json\n"), (t(), 8, a()));
        assert_eq!(of("tokenizer: ./t.json, ", "tokenizer: t.json\n"), (t(), 8, a()));
        let more = "tokenizer: {path: t.json, sequence_length: 64, eos: <b>}\n";
        for trained_on in ["", "tokenizer: t.json, "] {
            assert_eq!(of(trained_on, more), (t(), 64, vec!["<b>".to_string()]));
        }
        // The name of a token of another tokenizer says nothing.
        assert_eq!(of("", "tokenizer: t.json\n"), (t(), 8, vec![]));
        assert_eq!(of("tokenizer: other.json, ", "tokenizer: t.json\n"), (t(), 8, vec![]));
        assert_eq!(of("tokenizer: other/t.json, ", "tokenizer: t.json\n"), (t(), 8, vec![]));
        assert_eq!(of("tokenizer: t.json, ", "tokenizer: bytes\n"), (None, 8, vec![]));
    }

    #[test]
    #[cfg(unix)]
    fn a_tokenizer_is_the_same_by_each_of_its_paths() {
        let place = tempfile::tempdir().unwrap();
        let file = |name: &str| Tokenizer::File(place.path().join(name));
        for name in ["t.json", "other.json"] {
            std::fs::write(place.path().join(name), "{}").unwrap();
        }
        std::os::unix::fs::symlink("t.json", place.path().join("link.json")).unwrap();
        assert!(is_same(&file("t.json"), &file("link.json")));
        assert!(!is_same(&file("t.json"), &file("other.json")));
        assert!(!is_same(&file("gone.json"), &file("gone too.json")));
        assert!(!is_same(&file("t.json"), &Tokenizer::Bytes));
    }
}
