//! Tests of checkpoints whose tensors arrive in any order and in pieces.

use super::faulty_store::{Faulty, Operation};
use super::{files, run, two};
use crate::checkpoint::folder::Folder;
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::writer::CheckpointWriter;
use crate::checkpoint::{Checkpoints, Counters, TrainingState};
use crate::data::tensor_payload::to_payload;
use crate::StateDict;
use bytes::Bytes;
use layerspec::DType;
use link::Payload;
use object_store::Error;
use pipeline::{StateName, TensorMeta};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tch::{Device, Kind, Tensor};
use testkit::Random;

/// A name and a payload, as they come from a worker.
type Piece = (String, Payload);

const STEP: &str = "step-00000003";

/// The files of [`mixed`], with the state names of their tensors.
const FILES: [(&str, &[&str]); 6] = [
    ("optimizer/0000-0.safetensors", &["optimizer/0.weight.exp_avg", "optimizer/0.weight.step"]),
    ("optimizer/0002-a.b.safetensors", &["optimizer/a.b.weight.exp_avg"]),
    ("weights/0000-0.safetensors", &["0.bias", "0.count", "0.mask", "0.none", "0.weight"]),
    ("weights/0001-a.safetensors", &["a.weight"]),
    ("weights/0002-a.b.safetensors", &["a.b.weight"]),
    ("weights/0003-e.safetensors", &["e.none"]),
];

fn numbers(kind: Kind, sizes: &[i64]) -> Tensor {
    let count = sizes.iter().product::<i64>();
    Tensor::arange(count, (Kind::Int64, Device::Cpu)).reshape(sizes).to_kind(kind)
}

/// Tensors of several types, some of them empty.
fn mixed() -> TrainingState {
    let mut weights = StateDict::default();
    weights.insert("0.weight", &numbers(Kind::Float, &[7, 5]));
    weights.insert("0.bias", &numbers(Kind::BFloat16, &[5]));
    weights.insert("0.count", &numbers(Kind::Int64, &[]));
    weights.insert("0.mask", &numbers(Kind::Bool, &[6]));
    weights.insert("0.none", &numbers(Kind::Float, &[0, 3]));
    weights.insert("a.b.weight", &numbers(Kind::Double, &[3, 2]));
    weights.insert("a.weight", &numbers(Kind::Half, &[4]));
    weights.insert("e.none", &numbers(Kind::Float, &[0]));
    let optimizer = [
        ("0.weight.exp_avg".to_string(), numbers(Kind::Float, &[7, 5])),
        ("0.weight.step".to_string(), Tensor::from(3.0f32)),
        ("a.b.weight.exp_avg".to_string(), numbers(Kind::Double, &[3, 2])),
    ];
    let counters = Counters { step: 3, updates: 3, loss_scale: None };
    TrainingState { weights, optimizer: optimizer.into(), counters }
}

/// Every tensor in one piece.
fn whole() -> Vec<Piece> {
    let mut state = mixed();
    let names = state.heads().unwrap().into_iter().map(|(name, _)| name);
    let piece = |name: String| {
        let payload = to_payload(&state.take(&name).unwrap()).unwrap();
        (name, payload)
    };
    names.map(piece).collect()
}

/// The same from two replicas, which have shards of the optimizer state of `0.weight`.
fn sharded() -> Vec<Piece> {
    let shards = |piece: Piece| match piece.0.as_str() {
        "optimizer/0.weight.exp_avg" => cut(&piece, 20),
        "optimizer/0.weight.step" => {
            [0, 20].map(|start| (format!("{}[{start}]", piece.0), piece.1.clone())).into()
        }
        _ => vec![piece],
    };
    whole().into_iter().flat_map(shards).collect()
}

/// Flat pieces of this many elements at most. The copies of a scalar stay as they are.
fn cut(piece: &Piece, most: usize) -> Vec<Piece> {
    let (name, Payload { meta, bytes }) = piece;
    let name = StateName::parse(name);
    if name.start.is_some() && meta.shape.is_empty() {
        return vec![piece.clone()];
    }
    let size = meta.dtype.size_bytes() as usize;
    let count = bytes.len() / size;
    let part = |from: usize| {
        let to = count.min(from + most);
        let start = Some(name.start.unwrap_or(0) + from as u64);
        let meta = TensorMeta { dtype: meta.dtype, shape: vec![(to - from) as u64] };
        let payload = Payload { meta, bytes: bytes.slice(from * size..to * size) };
        (StateName { start, ..name }.to_string(), payload)
    };
    (0..count).step_by(most).map(part).collect()
}

fn heads(pieces: &[Piece]) -> Vec<(String, TensorMeta)> {
    pieces.iter().map(|(name, payload)| (name.clone(), payload.meta.clone())).collect()
}

fn shuffle(pieces: &mut [Piece], seed: u64) {
    let mut random = Random::new(seed);
    for last in (1..pieces.len()).rev() {
        pieces.swap(last, random.below(last as u64 + 1) as usize);
    }
}

async fn begin(checkpoints: &Checkpoints, announced: &[Piece]) -> CheckpointWriter {
    let counters = mixed().counters;
    let (heads, sizes) = (heads(announced), mixed().sizes());
    checkpoints.begin(counters, run(), &heads, &sizes).await.unwrap()
}

/// A new folder of checkpoints.
fn folder() -> (tempfile::TempDir, PathBuf, Checkpoints) {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("c");
    let checkpoints = Checkpoints::open(folder.to_str().unwrap(), true).unwrap();
    (place, folder, checkpoints)
}

/// The file that the library writes of tensors of [`mixed`].
fn by_library(names: &[&str]) -> Vec<u8> {
    let (mut state, mut tensors) = (mixed(), StateDict::default());
    for name in names {
        tensors.insert(StateName::parse(name).name, &state.take(name).unwrap());
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    tensors.save(&path).unwrap();
    std::fs::read(path).unwrap()
}

fn assert_files(checkpoint: &Path) {
    let found = files(checkpoint);
    let names = found.iter().map(|path| path.strip_prefix(checkpoint).unwrap());
    let expected = ["manifest.json"].into_iter().chain(FILES.iter().map(|(name, _)| *name));
    assert!(names.eq(expected.map(Path::new)), "{found:?}");
    for (name, tensors) in FILES {
        assert_eq!(std::fs::read(checkpoint.join(name)).unwrap(), by_library(tensors), "{name}");
    }
}

/// A manifest without its time.
fn timeless(manifest: Manifest) -> Manifest {
    Manifest { time: None, sha256: String::new(), ..manifest }
}

/// Whole tensors and slices, of one worker and of replicas with shards, in several orders.
fn arrivals() -> Vec<(Vec<Piece>, Vec<Piece>)> {
    let mut all = Vec::new();
    for seed in 0..5 {
        for (announced, most) in [(whole(), 99), (whole(), 3), (sharded(), 99), (sharded(), 4)] {
            let mut pieces = match most {
                99 => announced.clone(),
                most => announced.iter().flat_map(|piece| cut(piece, most)).collect(),
            };
            shuffle(&mut pieces, seed);
            all.push((announced, pieces));
        }
    }
    all
}

/// CKPT-2.
#[tokio::test]
async fn files_are_the_same_however_their_tensors_arrive() {
    let (_place, folder, checkpoints) = folder();
    let written = timeless(checkpoints.write(mixed(), run()).await.unwrap());
    assert_files(&folder.join(STEP));
    for (announced, pieces) in arrivals() {
        let mut writer = begin(&checkpoints, &announced).await;
        assert!(files(&folder).is_empty(), "the one before is deleted");
        for (name, payload) in &pieces {
            writer.add(name, payload).await.unwrap();
        }
        assert_eq!(timeless(writer.finish().await.unwrap()), written);
        assert_files(&folder.join(STEP));
        checkpoints.verify(STEP).await.unwrap();
        assert_eq!(checkpoints.newest_known(), Some(3));
    }
}

/// CKPT-2, CKPT-5.
#[tokio::test]
async fn an_object_store_gets_whole_files() {
    let (_place, _, local) = folder();
    let written = timeless(local.write(mixed(), run()).await.unwrap());
    let store = Faulty::new();
    let checkpoints = Checkpoints::of(Folder::of(Arc::new(store.clone()), "test://run", &[]));
    for (announced, pieces) in arrivals() {
        let mut writer = begin(&checkpoints, &announced).await;
        assert!(store.files().await.is_empty());
        for (name, payload) in &pieces {
            writer.add(name, payload).await.unwrap();
        }
        assert_eq!(timeless(writer.finish().await.unwrap()), written);
        checkpoints.verify(STEP).await.unwrap();
    }
    // A file that is refused takes the others with it.
    let at = "step-00000003/weights/0002-a.b.safetensors";
    let full = || Error::Generic { store: "Test", source: "no room".into() };
    store.fails(move |operation, name| (operation == Operation::Put && name == at).then(full));
    let mut writer = begin(&checkpoints, &whole()).await;
    let mut failed = Vec::new();
    for (name, payload) in whole() {
        if let Err(error) = writer.add(&name, &payload).await {
            failed.push(error.to_string());
        }
    }
    failed.push(writer.finish().await.unwrap_err().to_string());
    assert!(failed[0].contains(at) && failed[0].ends_with("no room"), "{failed:?}");
    let after = "step-00000003 of test://run is not written, because an earlier part of it was not";
    assert!(failed.len() > 2 && failed[1..].iter().all(|error| error == after), "{failed:?}");
    assert!(store.files().await.is_empty());
}

/// A piece goes to its place at once. What is left of a writer that was dropped is deleted later.
/// CKPT-3.
#[tokio::test]
async fn an_unfinished_checkpoint_is_none_and_is_replaced() {
    let (_place, folder, checkpoints) = folder();
    let mut writer = begin(&checkpoints, &whole()).await;
    let pieces = whole();
    let of = |name: &str| pieces.iter().find(|(of, _)| of == name).unwrap();
    let weight = cut(of("0.weight"), 10);
    writer.add(&weight[1].0, &weight[1].1).await.unwrap();
    let (name, payload) = of("a.weight");
    writer.add(name, payload).await.unwrap();
    let there = files(&folder.join(STEP));
    let (draft, complete) = (&there[0], &there[1]);
    assert_eq!(there.len(), 2);
    assert!(draft.file_name().unwrap().to_str().unwrap().starts_with(".bossman-"), "{there:?}");
    let (draft, expected) = (std::fs::read(draft).unwrap(), by_library(FILES[2].1));
    assert_eq!(draft.len(), expected.len());
    let header = draft.iter().zip(&expected).take_while(|(one, other)| one == other).count();
    assert!(header > 8 && draft.windows(40).any(|part| part == &weight[1].1.bytes[..]));
    assert_eq!(*complete, folder.join(STEP).join("weights/0001-a.safetensors"));
    drop(writer);
    assert_eq!(files(&folder), std::slice::from_ref(complete));
    assert!(checkpoints.list().await.unwrap()[0].is_unfinished());
    assert!(checkpoints.last().await.unwrap().is_none());
    checkpoints.write(mixed(), run()).await.unwrap();
    assert_files(&folder.join(STEP));
}

/// CKPT-5.
#[tokio::test]
async fn a_disk_that_refuses_a_file_keeps_no_other() {
    let (_place, folder, checkpoints) = folder();
    for (in_the_way, fails_at) in [
        ("weights", "weights/0000-0.safetensors"),
        ("weights/0001-a.safetensors/x", "weights/0001-a.safetensors"),
    ] {
        let mut writer = begin(&checkpoints, &whole()).await;
        let in_the_way = folder.join(STEP).join(in_the_way);
        std::fs::create_dir_all(in_the_way.parent().unwrap()).unwrap();
        std::fs::write(in_the_way, "").unwrap();
        let mut failed = Vec::new();
        for name in writer.order() {
            let (_, payload) = whole().into_iter().find(|(of, _)| *of == name).unwrap();
            failed.extend(writer.add(&name, &payload).await.err());
        }
        let error = failed[0].to_string();
        assert!(error.contains(fails_at), "{error}");
        writer.finish().await.unwrap_err();
        assert!(!folder.join(STEP).exists());
    }
}

fn meta(dtype: DType, shape: &[u64]) -> TensorMeta {
    TensorMeta { dtype, shape: shape.into() }
}

/// Zeros.
fn payload(dtype: DType, shape: &[u64]) -> Payload {
    let meta = meta(dtype, shape);
    let bytes = vec![0u8; meta.byte_len().unwrap() as usize].into();
    Payload { meta, bytes }
}

/// CKPT-10.
#[tokio::test]
async fn a_strange_piece_is_an_error_that_names_it() {
    use DType::{Bool, Float32, Float64};
    let short = Payload { bytes: Bytes::from_static(&[0; 4]), ..payload(Float32, &[7, 5]) };
    let endless = Payload { meta: meta(Float32, &[u64::MAX, 2]), bytes: Bytes::new() };
    let untrue = Payload { bytes: Bytes::from_static(&[0, 1, 2]), ..payload(Bool, &[3]) };
    let cases = [
        ("9.weight", payload(Float32, &[1]), "was not announced"),
        ("optimizer/0.weight.exp_avg_sq", payload(Float32, &[7, 5]), "was not announced"),
        ("optimizer/a.weight.exp_avg[0]", payload(Float32, &[1]), "was not announced"),
        ("0.weight", payload(Float32, &[5, 7]), "expected float32 [7, 5], got float32 [5, 7]"),
        ("0.weight", payload(Float64, &[7, 5]), "expected float32 [7, 5], got float64 [7, 5]"),
        ("0.weight", payload(Float32, &[7, 5]), "elements 8 to 10 came twice"),
        ("slice/0.weight[0]", payload(Float32, &[9]), "elements 8 to 9 came twice"),
        ("slice/0.weight[9]", payload(Float32, &[9]), "elements 9 to 10 came twice"),
        ("slice/0.weight[10]", payload(Float32, &[5, 1]), "got float32 [5, 1]"),
        ("slice/0.weight[10]", payload(Float64, &[5]), "got float64 [5]"),
        ("slice/0.weight[31]", payload(Float32, &[5]), "is not within its 35 elements"),
        ("slice/0.weight[18446744073709551615]", payload(Float32, &[5]), "is not within"),
        ("slice/0.mask[3]", untrue, "has a byte that is neither 0 nor 1"),
        ("0.weight", short, "has 4 bytes, which are not those of float32 [7, 5]"),
        ("0.weight", endless, "has 0 bytes, which are not those of"),
        ("optimizer/0.weight.step", payload(Float32, &[]), "was announced in copies"),
        ("optimizer/0.weight.step[0]", payload(Float32, &[1]), "got float32 [1]"),
        ("optimizer/0.weight.step[7]", payload(Float32, &[]), "came twice, or was not announced"),
        ("optimizer/0.weight.step[20]", payload(Float32, &[]), "came twice, or was not"),
    ];
    let (_place, folder, checkpoints) = folder();
    for (name, piece, expected) in cases {
        let mut writer = begin(&checkpoints, &sharded()).await;
        writer.add("slice/0.weight[8]", &payload(Float32, &[2])).await.unwrap();
        writer.add("optimizer/0.weight.step[20]", &payload(Float32, &[])).await.unwrap();
        assert!(!files(&folder).is_empty());
        let error = writer.add(name, &piece).await.unwrap_err().to_string();
        assert!(error.contains(&format!("`{name}`: ")) && error.contains(expected), "{error}");
        assert!(files(&folder).is_empty(), "{name}");
    }
}

/// CKPT-10.
#[tokio::test]
async fn what_a_worker_announces_is_of_the_model() {
    use DType::{Float32, Float64};
    const STATE: &str = "optimizer/0.weight.exp_avg";
    let at = |start: u64| format!("{STATE}[{start}]");
    let float = |name: &str, shape: &[u64]| (name.to_string(), meta(Float32, shape));
    let double = |name: &str, shape: &[u64]| (name.to_string(), meta(Float64, shape));
    let cases = [
        (vec![float("9.weight", &[1])], "`9.weight`: the model has no such parameter"),
        (vec![float("optimizer/9.weight.step", &[])], "the model has no such parameter"),
        (vec![float("optimizer/step", &[])], "the model has no such parameter"),
        (vec![float("0.weight", &[5, 7])], "expected float32 [7, 5], got float32 [5, 7]"),
        (vec![float("0.weight", &[7, 5]); 2], "`0.weight`: was announced twice"),
        (vec![float("slice/0.weight[0]", &[35])], "was announced in slices, not whole"),
        (vec![float(STATE, &[36])], "float32 [36] is larger than its parameter"),
        (vec![float(STATE, &[u64::MAX, 2])], "is too large to be real"),
        (vec![float(STATE, &[35]), float(&at(0), &[35])], "was announced whole and in shards"),
        (vec![float(&at(0), &[10]), float(&at(11), &[24])], "10 to 11 are with no replica"),
        (vec![float(&at(0), &[10]), float(&at(9), &[26])], "10 to 9 are with no replica"),
        (vec![float(&at(0), &[36])], "its shards are more than 35 elements"),
        (vec![float(&at(0), &[1]), float(&at(1), &[u64::MAX])], "more than 35 elements"),
        (vec![float(&at(0), &[10])], "its shards are 10 of 35 elements"),
        (vec![float(&at(0), &[5, 7])], "expected a flat shard, got float32 [5, 7]"),
        (vec![float(&at(0), &[10]), double(&at(10), &[25])], "its shards are not alike"),
        (vec![float(&at(0), &[]), float(&at(10), &[25])], "its shards are not alike"),
        (vec![float(&at(0), &[]), float(&at(36), &[])], "its shard at 36 is not within 35"),
    ];
    let (_place, folder, checkpoints) = folder();
    checkpoints.write(mixed(), run()).await.unwrap();
    for (heads, expected) in cases {
        let begun = checkpoints.begin(mixed().counters, run(), &heads, &mixed().sizes()).await;
        let error = begun.map(drop).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    // Nothing was begun, so the one before is there.
    assert_files(&folder.join(STEP));
}

/// CKPT-10.
#[tokio::test]
async fn what_is_missing_is_named() {
    let (_place, folder, checkpoints) = folder();
    for (left_out, expected) in [
        ("0.bias", "`0.bias`: it is missing"),
        ("optimizer/0.weight.exp_avg[0]", "exp_avg`: elements 0 to 20 are missing"),
        ("optimizer/0.weight.exp_avg[20]", "exp_avg`: elements 20 to 35 are missing"),
        ("optimizer/0.weight.step[20]", "step`: the copies of the shards at 20 are missing"),
    ] {
        let mut writer = begin(&checkpoints, &sharded()).await;
        for (name, payload) in sharded().iter().filter(|(name, _)| name != left_out) {
            writer.add(name, payload).await.unwrap();
        }
        let error = writer.finish().await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(files(&folder).is_empty() && checkpoints.newest_known().is_none());
    }
}

/// Two runs would each take the other's checkpoints for its own old ones, and delete them.
#[tokio::test]
async fn a_folder_has_one_run_at_a_time() {
    let (folder, mut run) = two().await;
    let path = folder.path().join("c");
    let open = || Checkpoints::open(path.to_str().unwrap(), false).unwrap();
    run.lock().unwrap();
    let refused = open().lock().unwrap_err().to_string();
    assert!(refused.contains("trains in this folder; wait until it has ended"), "{refused}");
    // Only reading needs no lock, and the lock is no checkpoint.
    assert_eq!(open().list().await.unwrap().len(), 2);
    let clone = run.clone();
    drop(run);
    open().lock().unwrap_err();
    drop(clone);
    open().lock().unwrap();
}

#[tokio::test]
async fn a_state_with_nan_is_no_checkpoint_and_leaves_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().to_str().unwrap(), true).unwrap();
    checkpoints.save(mixed()).await.unwrap();
    let mut next = mixed();
    next.counters.step = 4;
    let _ = next.optimizer["a.b.weight.exp_avg"].get(2).fill_(f64::NAN);
    let error = checkpoints.save(next).await.unwrap_err().to_string();
    assert!(error.contains("step-00000004: is not written, because `a.b.weight.exp_avg` has NaN"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "{error}");
    assert_eq!(checkpoints.last().await.unwrap().unwrap().counters.step, 3);
}
