//! Tests tables by the names of columns.

use super::*;
use crate::{Dataset, Source};
use layerspec::LayerGraph;
use pipeline::LossSpec;
use tch::{Kind, Tensor};

fn spec(inputs: &[&str], target: &str) -> ColumnsSpec {
    ColumnsSpec {
        inputs: InputColumns::Only(inputs.iter().map(ToString::to_string).collect()),
        target: TargetColumn { column: target.into(), transform: Transform::None },
        id: None,
        missing: Missing::Error,
        normalize: false,
    }
}

fn model(features: u64, outputs: u64) -> LayerGraph {
    let text = format!(
        "{{inputs: {{x: [batch, {features}]}}, layers: [{{Linear: {{in_features: {features}, \
         out_features: {outputs}}}}}]}}"
    );
    LayerGraph::from_yaml(&text, "model.yaml").unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.to_kind(Kind::Double).reshape([-1])).unwrap()
}

struct Table(tempfile::TempDir);

impl Table {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t.csv"), text).unwrap();
        Table(folder)
    }

    fn source(&self, spec: ColumnsSpec) -> ColumnsSource {
        ColumnsSource { path: self.0.path().join("t.csv"), spec, learned: None }
    }

    fn open(&self, spec: ColumnsSpec, features: u64, loss: &LossSpec) -> Result<Dataset, String> {
        let outputs = if loss.classes().is_some() { 3 } else { 1 };
        let source = Source::Columns(Box::new(self.source(spec)));
        let within = format!("{}/", self.0.path().display());
        Dataset::open(&source, &model(features, outputs), loss, None)
            .map_err(|e| e.to_string().replace(&within, ""))
    }
}

const GEMS: &str = "id;carat;cut;price\n7;0.5;Good;100\n8;1.5;Ideal;1000\n9;1.0;Good;10\n";

#[test]
fn texts_become_categories_and_targets_logarithms() {
    let table = Table::new(GEMS);
    let mut of_price = spec(&["cut", "carat"], "price");
    of_price.target.transform = Transform::Log;
    let data = table.open(of_price, 3, &LossSpec::MSELoss).unwrap();
    let batch = data.batch(&[0, 1, 2]).unwrap();
    assert_eq!(numbers(batch.x()), [1.0, 0.0, 0.5, 0.0, 1.0, 1.5, 1.0, 0.0, 1.0]);
    let logs = numbers(batch.y());
    assert!((logs[1] - 1000f64.ln()).abs() < 1e-6, "{logs:?}");

    let of_cut = spec(&["carat"], "cut");
    let data = table.open(of_cut.clone(), 1, &LossSpec::cross_entropy()).unwrap();
    assert_eq!(numbers(data.batch(&[0, 1, 2]).unwrap().y()), [0.0, 1.0, 0.0]);
    let normalized = ColumnsSpec { normalize: true, ..of_cut };
    let data = table.open(normalized, 1, &LossSpec::cross_entropy()).unwrap();
    let scaled = numbers(data.batch(&[0, 1, 2]).unwrap().x());
    let expected = [-1.5f64.sqrt(), 1.5f64.sqrt(), 0.0];
    assert!(scaled.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{scaled:?}");
}

#[test]
fn missing_values_are_named_or_filled() {
    let table = Table::new("a,b,y\n1,red,0\n,blue,1\n3,NA,2\n5,red,3\n");
    let mut of_y = spec(&["a", "b"], "y");
    let refused = table.open(of_y.clone(), 3, &LossSpec::MSELoss).unwrap_err();
    assert_eq!(
        refused,
        "t.csv: line 3, column `a`: has no value; set `missing: mean` or `most_common` in \
         `columns`, or delete the row"
    );
    of_y.missing = Missing::MostCommon;
    let data = table.open(of_y.clone(), 3, &LossSpec::MSELoss).unwrap();
    let x = numbers(data.batch(&[1, 2]).unwrap().x());
    // `red` is the most common, and 1 the first of equally common numbers.
    assert_eq!(x, [1.0, 1.0, 0.0, 3.0, 0.0, 1.0]);
    of_y.missing = Missing::Mean;
    of_y.inputs = InputColumns::Only(vec!["a".into()]);
    let data = table.open(of_y, 1, &LossSpec::MSELoss).unwrap();
    assert_eq!(numbers(data.batch(&[1]).unwrap().x()), [3.0]);
}

#[test]
fn other_tables_are_read_by_what_was_learned() {
    let train = Table::new(GEMS);
    let of_cut = spec(&["carat"], "cut");
    let learned = train.source(of_cut.clone()).learn().unwrap();
    let text = serde_json::to_string(&learned).unwrap();
    assert_eq!(serde_json::from_str::<LearnedTable>(&text).unwrap(), learned);
    let open = |text: &str| {
        let test = Table::new(text);
        let source =
            ColumnsSource { learned: Some(learned.clone()), ..test.source(of_cut.clone()) };
        let within = format!("{}/", test.0.path().display());
        let source = Source::Columns(Box::new(source));
        let data = Dataset::open(&source, &model(1, 3), &LossSpec::cross_entropy(), None);
        data.map(|data| numbers(data.batch(&[0]).unwrap().y()))
            .map_err(|e| e.to_string().replace(&within, ""))
    };
    assert_eq!(open("carat,cut\n2,Ideal\n").unwrap(), [1.0]);
    assert_eq!(
        open("carat,cut\n2,Fair\n").unwrap_err(),
        "t.csv: line 2, column `cut`: `Fair` is not among the 2 values to train on"
    );
    assert_eq!(
        open("carat,cut\nbig,Good\n").unwrap_err(),
        "t.csv: line 2, column `carat`: `big` is no number, as the values to train on are"
    );
}

#[test]
fn what_does_not_fit_is_named() {
    let table = Table::new(GEMS);
    let mse = LossSpec::MSELoss;
    let refused = |spec: ColumnsSpec, features, loss: &LossSpec| {
        table.open(spec, features, loss).unwrap_err()
    };
    assert_eq!(
        refused(spec(&["carat", "cut"], "price"), 4, &mse),
        "t.csv: the columns give 3 numbers (carat 1, cut 2), but the model's `x` takes [4]; set \
         its size to 3"
    );
    assert_eq!(
        refused(spec(&["carot"], "price"), 1, &mse),
        "t.csv: no column `carot`; it holds id, carat, cut, price; did you mean `carat`?"
    );
    assert_eq!(
        refused(spec(&["carat"], "cut"), 1, &mse),
        "t.csv: the target `cut` has texts, but the loss takes numbers; use a loss over classes, \
         as CrossEntropyLoss"
    );
    let negative = Table::new("a,y\n1,-1\n");
    let mut of_y = spec(&["a"], "y");
    of_y.target.transform = Transform::Log;
    assert_eq!(
        negative.open(of_y, 1, &mse).unwrap_err(),
        "t.csv: line 2, column `y`: `-1` has no logarithm"
    );
    let ragged = Table::new("a,y\n1,2\n3\n");
    let refused = ragged.open(spec(&["a"], "y"), 1, &mse).unwrap_err();
    assert!(refused.starts_with("t.csv: ") && refused.contains("line: 3"), "{refused}");
    let empty = Table::new("a,y\n");
    assert!(empty.open(spec(&["a"], "y"), 1, &mse).is_err());
}
