//! Tests every format on files that the tests make, and the errors about wrong files.

mod batches;
mod broken;
mod formats;
mod pictures;
mod text;
mod worker_files;

use super::*;
use std::path::PathBuf;
use std::sync::LazyLock;
use tch::{Kind, Tensor};

/// Makes a model with one input of this shape after the batch, and of this dtype.
pub(super) fn model_of(dtype: &str, shape: &str) -> LayerGraph {
    let input = format!("{{shape: [batch, {shape}], dtype: {dtype}}}");
    let text = format!("{{model: m, inputs: {{x: {input}}}, layers: [Identity]}}");
    LayerGraph::from_yaml(&text, "model").unwrap()
}

pub(super) static CLASSES: LazyLock<LossSpec> = LazyLock::new(LossSpec::cross_entropy);

/// Makes a model with one input of this shape after the batch.
pub(super) fn model(shape: &str) -> LayerGraph {
    LayerGraph::from_yaml(
        &format!("{{model: m, inputs: {{x: [batch, {shape}]}}, layers: [ReLU]}}"),
        "model",
    )
    .unwrap()
}

impl Batch {
    pub(super) fn tensors(&self) -> (&Tensor, &Tensor, &Variables) {
        match self.contents() {
            Contents::Tensors { x, target, variables } => (x, target, variables),
            Contents::Indices(numbers) => panic!("{numbers:?}"),
        }
    }

    pub(super) fn into_indices(self) -> SampleIndices {
        match self.into_contents() {
            Contents::Indices(numbers) => *numbers,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn x(&self) -> &Tensor {
        self.tensors().0
    }

    pub(super) fn y(&self) -> &Tensor {
        self.tensors().1
    }
}

/// A temporary folder with its files, deleted when the test ends.
pub(super) struct Folder(tempfile::TempDir);

impl Folder {
    pub(super) fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(super) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Returns an error as a user sees it, without the folder.
    pub(super) fn error<T: std::fmt::Debug>(&self, result: Result<T, DataError>) -> String {
        result.unwrap_err().to_string().replace(&format!("{}/", self.0.path().display()), "")
    }
}

/// Writes a `.safetensors` file.
pub(super) fn save(path: &Path, tensors: &[(&str, Tensor)]) {
    use ::safetensors::tensor::{Dtype, TensorView};
    let (mut of, mut bytes) = (Vec::new(), Vec::new());
    for (name, tensor) in tensors {
        let dtype = match tensor.kind() {
            Kind::Uint8 => Dtype::U8,
            Kind::Int64 => Dtype::I64,
            Kind::Float => Dtype::F32,
            other => panic!("{other:?} is not written here"),
        };
        of.push((
            *name,
            dtype,
            tensor.size().into_iter().map(|size| size as usize).collect::<Vec<_>>(),
        ));
        bytes.push(tensor::payload::to_bytes(tensor).unwrap());
    }
    let views = of
        .into_iter()
        .zip(&bytes)
        .map(|((name, dtype, shape), bytes)| (name, TensorView::new(dtype, shape, bytes).unwrap()));
    ::safetensors::serialize_to_file(views, None, path).unwrap();
}

/// Makes an idx file of bytes.
pub(super) fn idx(sizes: &[u32], bytes: &[u8]) -> Vec<u8> {
    let mut file = vec![0, 0, 8, sizes.len() as u8];
    file.extend(sizes.iter().flat_map(|size| size.to_be_bytes()));
    file.extend(bytes);
    file
}

/// Makes a `.npy` file.
pub(super) fn npy(descr: &str, shape: &str, bytes: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(bytes);
    file
}

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

/// Makes a zip archive, compressed or not.
pub(super) fn archive(compressed: bool, files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    use std::io::Write;
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let method =
        if compressed { zip::CompressionMethod::Deflated } else { zip::CompressionMethod::Stored };
    let options = zip::write::SimpleFileOptions::default().compression_method(method);
    for (name, bytes) in files {
        zip.start_file(*name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

pub(super) fn floats(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

pub(super) fn numbers(tensor: &Tensor) -> Vec<f64> {
    let flat = tensor.f_to_kind(Kind::Double).unwrap().f_reshape([-1]).unwrap();
    flat.iter::<f64>().unwrap().collect()
}

/// Makes a Parquet file with three rows of `label` (a number) and `pixels` (a list of two).
pub(super) fn parquet_file() -> Vec<u8> {
    use ::parquet::data_type::{FloatType, Int32Type};
    use ::parquet::file::properties::WriterProperties;
    use ::parquet::file::writer::SerializedFileWriter;
    let schema = "message m { required int32 label; required group pixels (LIST) { repeated group \
                  list { required float element; } } }";
    let schema =
        std::sync::Arc::new(::parquet::schema::parser::parse_message_type(schema).unwrap());
    let compressed =
        WriterProperties::builder().set_compression(::parquet::basic::Compression::SNAPPY).build();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, compressed.into()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int32Type>().write_batch(&[7, 8, 9], None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let (numbers, repeated) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0, 1, 0, 1, 0, 1]);
    column.typed::<FloatType>().write_batch(&numbers, Some(&[1; 6]), Some(&repeated)).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.into_inner().unwrap()
}

/// Makes a Parquet file with three rows of `id` (int64, above 2^53), `cut` (texts, the second is
/// null), `unused` (lists) and `price` (numbers).
pub(super) fn parquet_of_texts() -> Vec<u8> {
    use ::parquet::data_type::{ByteArrayType, DoubleType, FloatType, Int64Type};
    use ::parquet::file::writer::SerializedFileWriter;
    let schema =
        "message m { required int64 id; optional binary cut (UTF8); required group unused \
                  (LIST) { repeated group list { required float element; } } required double \
                  price; }";
    let schema =
        std::sync::Arc::new(::parquet::schema::parser::parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Default::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let ids = [9_007_199_254_740_993, 2, 3];
    column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let cuts = ["Ideal".into(), "Good".into()];
    column.typed::<ByteArrayType>().write_batch(&cuts, Some(&[1, 0, 1]), None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let numbers = [1.0, 2.0, 3.0];
    column.typed::<FloatType>().write_batch(&numbers, Some(&[1; 3]), Some(&[0; 3])).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<DoubleType>().write_batch(&[0.5, 1.5, 2.0], None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.into_inner().unwrap()
}

/// Makes a Parquet file with one row of `image` (a struct of bytes and a path), `raw` (bytes),
/// `text` (long), `price` (a decimal, 1.50) and `label` (a number).
pub(super) fn parquet_of_kinds() -> Vec<u8> {
    use ::parquet::data_type::{ByteArrayType, Int32Type};
    use ::parquet::file::writer::SerializedFileWriter;
    let schema = "message m { required group image { required binary bytes; required binary path \
                  (UTF8); } required binary raw; required binary text (UTF8); required int32 \
                  price (DECIMAL(5,2)); required int32 label; }";
    let schema =
        std::sync::Arc::new(::parquet::schema::parser::parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Default::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for _ in 0..4 {
        let mut column = group.next_column().unwrap().unwrap();
        let long = ["x".repeat(1000).as_str().into()];
        column.typed::<ByteArrayType>().write_batch(&long, None, None).unwrap();
        column.close().unwrap();
    }
    for number in [150, 1] {
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int32Type>().write_batch(&[number], None, None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.into_inner().unwrap()
}
