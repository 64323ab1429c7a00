//! Tests tables by the names of columns.

use super::*;
use crate::batch::Contents;
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
    let refused = |of: &ColumnsSpec| table.open(of.clone(), 3, &LossSpec::MSELoss).unwrap_err();
    assert_eq!(
        refused(&of_y),
        "t.csv: line 3, column `a`: has no value; set `missing: mean` in `columns` (or \
         `most_common`, for up to 65536 different numbers), or delete the row"
    );
    of_y.missing = Missing::Mean;
    assert_eq!(
        refused(&of_y),
        "t.csv: line 4, column `b`: has no value, and texts have no mean; set `missing: \
         most_common` in `columns`, or delete the row"
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
    let golden = [
        ("a,y\r\n\r\n1,2\r\n3\r\n", "t.csv: line 4 has 1 columns; the header has 2"),
        (
            "a,y\r\n1,2\r\n\r\n,3",
            "t.csv: line 4, column `a`: has no value; set `missing: mean` in \
          `columns` (or `most_common`, for up to 65536 different numbers), or delete the row",
        ),
        ("a,y\n", "t.csv: column `a`: it has no value in any row"),
        ("a,y,a\n1,2,3\n", "t.csv: has two columns `a`; rename one of them"),
        ("a,y\n1,2\ninf,3\n", "t.csv: column `a`: line 3 has `inf`, which is no finite number"),
        (
            "a,y\n1e300,2\n-1e300,3\n",
            "t.csv: column `a`: its numbers are too large for a mean and a standard deviation",
        ),
        ("a,y\n1,2\n1e39,3\n", "t.csv: line 3, column `a`: `1e39` is larger than any float32"),
    ];
    for (text, expected) in golden {
        let refused = Table::new(text).open(spec(&["a"], "y"), 1, &mse).unwrap_err();
        assert_eq!(refused, expected);
    }
}

#[test]
fn an_infinite_number_among_texts_is_a_text() {
    let table = Table::new("grade,y\nInf,1\nVS1,2\n1e999,3\n");
    let data = table.open(spec(&["grade"], "y"), 3, &LossSpec::MSELoss).unwrap();
    let x = numbers(data.batch(&[0, 1, 2]).unwrap().x());
    // In alphabetical order: 1e999, Inf, VS1.
    assert_eq!(x, [0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
}

#[test]
fn each_input_has_its_columns_and_an_embedding_takes_categories() {
    let table = Table::new("color,size,cut,y\nE,0.5,Good,1\nD,1.5,Ideal,2\nE,2.5,Fair,3\n");
    let model = |rows: u64, dtype: &str| {
        let text = format!(
            "{{inputs: {{c: {{shape: [batch, 2], dtype: {dtype}}}, s: [batch, 1]}}, layers: [\
             {{Embedding: {{num_embeddings: {rows}, embedding_dim: 2}}}}, {{Flatten: {{}}}}, \
             {{Linear: {{in_features: 5, out_features: 1}}, in_variables: [s], merge: concat, \
             dim: 1}}]}}"
        );
        LayerGraph::from_yaml(&text, "model.yaml").unwrap()
    };
    let with = |inputs: &[(&str, &[&str])]| {
        let named = inputs.iter().map(|(name, columns)| {
            (name.to_string(), columns.iter().map(ToString::to_string).collect())
        });
        ColumnsSpec { inputs: InputColumns::Named(named.collect()), ..spec(&[], "y") }
    };
    let open_as = |dtype: &str, spec: ColumnsSpec, rows: u64| {
        let source = Source::Columns(Box::new(table.source(spec)));
        let within = format!("{}/", table.0.path().display());
        Dataset::open(&source, &model(rows, dtype), &LossSpec::MSELoss, None)
            .map_err(|e| e.to_string().replace(&within, ""))
    };
    let open = |spec, rows| open_as("int64", spec, rows);
    let named = with(&[("s", &["size"]), ("c", &["color", "cut"])]);
    let batch = open(named.clone(), 3).unwrap().batch(&[0, 1, 2]).unwrap();
    let Contents::Tensors { x: categories, variables, .. } = batch.contents() else {
        panic!("{batch:?}")
    };
    let sizes = variables.get("s").unwrap();
    assert_eq!(categories.kind(), Kind::Int64);
    assert_eq!(numbers(categories), [1.0, 1.0, 0.0, 2.0, 1.0, 0.0]);
    assert_eq!(numbers(sizes), [0.5, 1.5, 2.5]);
    let batch = open_as("int32", named.clone(), 3).unwrap().batch(&[0, 1, 2]).unwrap();
    let Contents::Tensors { x: categories, .. } = batch.contents() else { panic!("{batch:?}") };
    assert_eq!(categories.kind(), Kind::Int);
    assert_eq!(numbers(categories), [1.0, 1.0, 0.0, 2.0, 1.0, 0.0]);
    let golden = [
        (
            named,
            2,
            "t.csv: column `cut` has 3 categories, but the model looks `c` up in 2 rows; set \
             num_embeddings to 3 or more",
        ),
        (
            with(&[("c", &["color", "size"]), ("s", &["size"])]),
            3,
            "t.csv: column `size` has numbers, but the model's `c` is int64: it takes categories \
             of texts",
        ),
        (
            with(&[("c", &["color", "cut"])]),
            3,
            "t.csv: `columns` has no columns for the model's input `s`",
        ),
        (with(&[("z", &["color"])]), 3, "t.csv: the model has no input `z`; its inputs are c, s"),
        (
            spec(&["color"], "y"),
            3,
            "t.csv: `columns` gives the inputs as one list, but the model has 2: c, s; give a \
             list for each, as `inputs: {c: [...]}`",
        ),
    ];
    for (spec, rows, expected) in golden {
        assert_eq!(open(spec, rows).unwrap_err(), expected);
    }
}

#[test]
fn a_column_has_a_bounded_number_of_categories() {
    let rows = |count: usize, last: &str| {
        let lines: String = (0..count).map(|n| format!("c{n}\n")).collect();
        format!("c\n{lines}{last}\n")
    };
    let learn = |text: &str| {
        let table = Table::new(text);
        let learned = table.source(spec(&["c"], "c")).learn();
        learned.map_err(|e| e.to_string().replace(&format!("{}/", table.0.path().display()), ""))
    };
    assert!(learn(&rows(65_536, "c5")).is_ok());
    assert_eq!(
        learn(&rows(65_536, "other")).unwrap_err(),
        "t.csv: line 65538, column `c`: it is text with more than 65536 different values; leave \
         the column out"
    );
    assert!(learn(&rows(1, &"x".repeat(1024))).is_ok());
    assert_eq!(
        learn(&rows(1, &"x".repeat(1025))).unwrap_err(),
        "t.csv: line 3, column `c`: a value of 1025 bytes; at most 1024 are allowed"
    );
}

#[test]
fn the_most_common_number_is_found_where_it_is_needed() {
    let of_y = ColumnsSpec { missing: Missing::MostCommon, ..spec(&["a"], "y") };
    let fill = |text: &str| {
        let learned = Table::new(text).source(of_y.clone()).learn()?;
        match &learned.columns["a"] {
            LearnedColumn::Number { fill, .. } => Ok(*fill),
            other => panic!("{other:?}"),
        }
    };
    let rows = |values: &[&str]| format!("a,y\n{}", values.join(",0\n") + ",0\n");
    let spelled = rows(&["1", "1.0", "1", "1.0", "2", "2", "2", ""]);
    assert_eq!(fill(&spelled).map_err(|e: DataError| e.to_string()), Ok(Some(1.0)));
    assert_eq!(fill(&rows(&["-0", "0.0", "0", "5", "5"])).unwrap(), Some(0.0));
    // Neither a target nor an input without gaps needs it.
    let many: String = (0..65_537).map(|number| format!("{number},{number}\n")).collect();
    assert_eq!(fill(&format!("a,y\n{many}")).unwrap(), None);
    let error = fill(&format!("a,y\n{many},0\n")).unwrap_err().to_string();
    let expected =
        "t.csv: column `a`: it has more than 65536 different numbers; use `missing: mean`";
    assert!(error.ends_with(expected), "{error}");
}

#[test]
fn all_forms_of_tables_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let source = |name: &str, bytes: Vec<u8>| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let spec = ColumnsSpec {
            id: Some("id".into()),
            missing: Missing::MostCommon,
            ..spec(&["cut"], "price")
        };
        ColumnsSource { path, spec, learned: None }
    };
    let text = |separator: &str| {
        let lines = ["id,cut,price", "9007199254740993,Ideal,0.5", "2,,1.5", "3,Good,2"];
        lines.join("\n").replace(',', separator).into_bytes()
    };
    for source in [
        source("a.csv", text(",")),
        source("b.csv", text(";")),
        source("c.tsv", text("\t")),
        source("d.csv.gz", crate::tests::gzip(&text(","))),
        source("e.parquet", crate::tests::parquet_of_texts()),
    ] {
        let name = source.path.display().to_string();
        assert!(ColumnsSource::is_table(&source.path), "{name}");
        assert_eq!(source.ids().unwrap().unwrap(), ["9007199254740993", "2", "3"], "{name}");
        let line = (!name.ends_with(".parquet")).then_some(3);
        assert_eq!(source.line_of(1), line, "{name}");
        let source = Source::Columns(Box::new(source));
        let data = Dataset::open(&source, &model(2, 1), &LossSpec::MSELoss, None).unwrap();
        let batch = data.batch(&[0, 1, 2]).unwrap();
        // The first of equally common texts fills.
        assert_eq!(numbers(batch.x()), [0.0, 1.0, 1.0, 0.0, 1.0, 0.0], "{name}");
        assert_eq!(numbers(batch.y()), [0.5, 1.5, 2.0], "{name}");
    }
}

/// They are names, as the code of Namibia, and no inputs.
#[test]
fn ids_that_look_missing_stay_as_they_are() {
    let table = Table::new("name,x,y\nNA,1,0\nNone,2,1\n?,3,0\n IT ,4,1\n");
    let source = table.source(ColumnsSpec { id: Some("name".into()), ..spec(&["x"], "y") });
    assert_eq!(source.ids().unwrap().unwrap(), ["NA", "None", "?", "IT"]);
}

#[test]
fn a_text_among_numbers_is_named() {
    let table = Table::new("a,b,y\n1,5,0\n2,-,1\n3,7,0\n4,8,1\n");
    let error = table.open(spec(&["a", "b"], "y"), 2, &LossSpec::MSELoss).unwrap_err();
    assert!(error.contains("column `b` is one of texts because of \"-\", which is no"), "{error}");
    let table = Table::new("a;y\n1;5,1\n2;3,2\n");
    let error = table.open(spec(&["a"], "y"), 1, &LossSpec::MSELoss).unwrap_err();
    assert!(error.contains("because of \"3,2\"") | error.contains("because of \"5,1\""), "{error}");
    // A column of texts is none of numbers.
    let table = Table::new("a,y\nred,1\nblue,2\n7,3\n");
    let error = table.open(spec(&["a"], "y"), 1, &LossSpec::MSELoss).unwrap_err();
    assert!(error.contains("the columns give 3 numbers"), "{error}");
}
