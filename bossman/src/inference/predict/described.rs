//! Lines of predictions that say which sample they are of, and which class it is.

use super::elements::{nested, rows, Element};
use crate::data::{Dataset, Transform};
use crate::{BossManError, Loss};
use serde_json::{Map, Value};
use tch::{Kind, Tensor};
use tensor::TensorError;

/// What each line says.
pub(super) struct Described {
    /// Whether the loss is over classes. Softmax of the outputs then gives probabilities.
    has_classes: bool,
    meaning: Meaning,
    has_header: bool,
}

/// What numbers of a model mean to its user.
#[derive(Clone, Debug, Default)]
pub struct Meaning {
    /// The names of the classes.
    pub class_names: Option<Vec<String>>,
    /// The title of a column that names the rows of the whole data, and the names.
    pub ids: Option<(String, Vec<String>)>,
    /// What was computed of the targets. It is undone.
    pub transform: Transform,
}

/// The lines of a batch, in both formats.
pub(super) struct Lines {
    /// The columns of the first one, besides the label.
    pub(super) columns: usize,
    pub(super) csv: Vec<u8>,
    pub(super) json: Vec<Value>,
}

/// The likeliest class of a sample, and its probability.
struct Likeliest {
    class: i64,
    probability: f32,
}

impl Described {
    pub(super) fn new(loss: &Loss, meaning: Meaning) -> Self {
        Described { has_classes: loss.classes().is_some(), meaning, has_header: false }
    }

    /// The lines of a batch whose first sample has the number `first` in the data.
    pub(super) fn lines(
        &mut self,
        data: &Dataset,
        first: u64,
        names: &[String],
        outputs: &[Tensor],
    ) -> Result<Lines, BossManError> {
        let Some(output) = outputs.first() else {
            return Ok(Lines { csv: Vec::new(), json: Vec::new(), columns: 0 });
        };
        let samples = output.size().first().copied().unwrap_or(1);
        let labels: Vec<(&str, Value)> =
            (0..samples).map(|place| self.label(data, first as i64 + place)).collect();
        let (titles, texts, values) = match (self.has_classes && output.dim() == 2, outputs) {
            (true, _) => self.classes(output)?,
            (false, [first, others @ ..]) if self.meaning.transform == Transform::Log => {
                let first = first.f_exp().map_err(TensorError::from)?;
                let others = others.iter().map(Tensor::shallow_clone);
                numbers(names, &[first].into_iter().chain(others).collect::<Vec<_>>())?
            }
            (false, _) => numbers(names, outputs)?,
        };
        let mut csv = csv::Writer::from_writer(Vec::new());
        let broken = |e: csv::Error| BossManError::Usage(format!("a line of predictions: {e}"));
        if !self.has_header {
            let title = labels.first().map_or("sample", |(title, _)| title);
            csv.write_record([title].into_iter().chain(titles.iter().map(String::as_str)))
                .map_err(broken)?;
        }
        let mut json = Vec::new();
        for (((title, label), texts), values) in labels.into_iter().zip(texts).zip(values) {
            let text = label.as_str().map_or_else(|| label.to_string(), str::to_string);
            csv.write_record([text].iter().chain(&texts)).map_err(broken)?;
            let entries = [(title.to_string(), label)].into_iter().chain(values);
            json.push(Value::Object(entries.collect::<Map<String, Value>>()));
        }
        self.has_header = true;
        let csv = csv.into_inner().map_err(|e| broken(e.into_error().into()))?;
        Ok(Lines { csv, json, columns: titles.len() })
    }

    /// The title and the label of a sample: its id, its file, or its number in the file, counted
    /// from 1.
    fn label(&self, data: &Dataset, number: i64) -> (&str, Value) {
        let whole = data.number(number).unwrap_or(number);
        if let Some((title, ids)) = &self.meaning.ids {
            let id = usize::try_from(whole).ok().and_then(|place| ids.get(place));
            return (title, id.map_or(Value::Null, |id| id.as_str().into()));
        }
        match data.file_of(number) {
            Some(file) => ("file", file.display().to_string().into()),
            None => ("sample", whole.saturating_add(1).into()),
        }
    }

    /// The likeliest class of each sample, and its probability.
    fn classes(&self, logits: &Tensor) -> Result<Columns, TensorError> {
        let name = |class: i64| {
            let names = self.meaning.class_names.as_ref();
            names.and_then(|names| names.get(usize::try_from(class).ok()?)).cloned()
        };
        let (mut texts, mut values) = (Vec::new(), Vec::new());
        for Likeliest { class, probability } in likeliest(logits)? {
            let probability = Element::Float(probability);
            let named = name(class);
            texts.push(vec![
                named.clone().unwrap_or_else(|| class.to_string()),
                probability.format_text(),
            ]);
            values.push(vec![
                ("class".to_string(), named.map_or_else(|| class.into(), Value::from)),
                ("probability".to_string(), probability.format_json()),
            ]);
        }
        Ok((vec!["class".into(), "probability".into()], texts, values))
    }
}

/// Titles, and for each sample its texts in a `.csv` and its entries in a `.jsonl`.
type Columns = (Vec<String>, Vec<Vec<String>>, Vec<Vec<(String, Value)>>);

/// The numbers of the first output for a `.csv`, and every output for a `.jsonl`.
fn numbers(names: &[String], outputs: &[Tensor]) -> Result<Columns, TensorError> {
    let first = outputs.first().map(rows).transpose()?.unwrap_or_default();
    let name = names.first().map_or("output", String::as_str);
    let titles = match first.first().map_or(0, Vec::len) {
        1 => vec![name.to_string()],
        count => (0..count).map(|place| format!("{name}.{place}")).collect(),
    };
    let texts = first.iter().map(|row| row.iter().map(Element::format_text).collect()).collect();
    let mut values: Vec<Vec<(String, Value)>> = vec![Vec::new(); first.len()];
    for (name, output) in names.iter().zip(outputs) {
        for (sample, value) in values.iter_mut().zip(nested(output)?) {
            sample.push((name.clone(), value));
        }
    }
    Ok((titles, texts, values))
}

/// The likeliest class of each row of logits `[samples, classes]`, or of logarithms of
/// probabilities, which softmax leaves as they are.
fn likeliest(logits: &Tensor) -> Result<Vec<Likeliest>, TensorError> {
    let probabilities = logits.f_to_kind(Kind::Float)?.f_softmax(1, Kind::Float)?;
    let (probability, class) = probabilities.f_max_dim(1, false)?;
    let (probability, class) = (Vec::<f32>::try_from(probability)?, Vec::<i64>::try_from(class)?);
    let both = class.into_iter().zip(probability);
    Ok(both.map(|(class, probability)| Likeliest { class, probability }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_class_has_the_probability_of_softmax() {
        let logits = Tensor::from_slice(&[0f32, 3f32.ln(), 0.0, 0.0]).view([2, 2]);
        for outputs in [logits.shallow_clone(), logits.log_softmax(1, Kind::Float)] {
            let found = likeliest(&outputs).unwrap();
            assert_eq!(found[0].class, 1);
            assert!((found[0].probability - 0.75).abs() < 1e-6);
            assert!((found[1].probability - 0.5).abs() < 1e-6);
        }
    }

    #[test]
    fn numbers_have_titles() {
        let outputs = [Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0]).view([2, 2])];
        let (titles, texts, values) = numbers(&["y".to_string()], &outputs).unwrap();
        assert_eq!(titles, ["y.0", "y.1"]);
        assert_eq!(texts, [["1.0", "2.0"], ["3.0", "4.0"]]);
        assert_eq!(values[1][0].1, serde_json::json!([3.0, 4.0]));
        let one = [Tensor::from_slice(&[1f32, f32::NAN]).view([2, 1])];
        let (titles, texts, _) = numbers(&["y".to_string()], &one).unwrap();
        assert_eq!(
            (titles, texts),
            (vec!["y".to_string()], vec![vec!["1.0".into()], vec!["NaN".to_string()]])
        );
    }
}
