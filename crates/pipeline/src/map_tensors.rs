//! Replaces the tensors in nested lists by others.

use crate::ids::StageId;

/// As [`nested`], one level deeper.
pub(crate) fn shards<T, U, E>(
    buckets: Vec<Vec<Vec<T>>>,
    mut f: impl FnMut(T) -> Result<U, E>,
) -> Result<Vec<Vec<Vec<U>>>, E> {
    buckets.into_iter().map(|shards| nested(shards, &mut f)).collect()
}

/// The same lists over other tensors.
pub(crate) fn nested<T, U, E>(
    lists: Vec<Vec<T>>,
    mut f: impl FnMut(T) -> Result<U, E>,
) -> Result<Vec<Vec<U>>, E> {
    lists.into_iter().map(|list| list.into_iter().map(&mut f).collect()).collect()
}

/// The same lists by stage.
pub(crate) fn by_stage<T, U, E>(
    tensors: Vec<(StageId, Vec<T>)>,
    mut f: impl FnMut(T) -> Result<U, E>,
) -> Result<Vec<(StageId, Vec<U>)>, E> {
    let mut each = |list: Vec<T>| list.into_iter().map(&mut f).collect::<Result<_, E>>();
    tensors.into_iter().map(|(stage, list)| Ok((stage, each(list)?))).collect()
}

/// The same tensors by name.
pub(crate) fn named<T, U, E>(
    tensors: Vec<(String, T)>,
    mut f: impl FnMut(T) -> Result<U, E>,
) -> Result<Vec<(String, U)>, E> {
    tensors.into_iter().map(|(name, t)| Ok((name, f(t)?))).collect()
}
