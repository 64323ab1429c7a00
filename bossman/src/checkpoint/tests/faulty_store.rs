//! An object store in memory whose operations fail as a test says.

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use std::fmt::{self, Debug, Display};
use std::sync::{Arc, Mutex};

/// A request to the store.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Get,
    Put,
    Part,
    Complete,
    Abort,
    Delete,
    List,
}

/// Gives the error with which an operation on a file fails.
type Fault = dyn FnMut(Operation, &str) -> Option<Error> + Send;

#[derive(Clone)]
struct Faults {
    fault: Arc<Mutex<Box<Fault>>>,
    /// All operations so far.
    seen: Arc<Mutex<Vec<(Operation, String)>>>,
}

/// A store in memory. Copies of this object share it.
#[derive(Clone, Debug)]
pub(super) struct Faulty {
    memory: Arc<InMemory>,
    faults: Faults,
}

impl Faulty {
    pub(super) fn new() -> Self {
        let faults =
            Faults { fault: Arc::new(Mutex::new(Box::new(|_, _| None))), seen: Arc::default() };
        Faulty { memory: Arc::default(), faults }
    }

    /// Operations fail from now on as `fault` says.
    pub(super) fn fails(
        &self,
        fault: impl FnMut(Operation, &str) -> Option<Error> + Send + 'static,
    ) {
        *self.faults.fault.lock().unwrap() = Box::new(fault);
    }

    /// Nothing fails any more.
    pub(super) fn heals(&self) {
        self.fails(|_, _| None);
    }

    /// How often it was asked for this operation on names that contain `part`.
    pub(super) fn count(&self, operation: Operation, part: &str) -> usize {
        let seen = self.faults.seen.lock().unwrap();
        seen.iter().filter(|(of, name)| *of == operation && name.contains(part)).count()
    }

    /// The number of operations so far.
    pub(super) fn operations(&self) -> usize {
        self.faults.seen.lock().unwrap().len()
    }

    /// The names of all files.
    pub(super) async fn files(&self) -> Vec<String> {
        let files = self.memory.list(None).map(|file| file.unwrap().location.to_string());
        let mut files: Vec<String> = files.collect().await;
        files.sort();
        files
    }

    /// Replaces a file.
    pub(super) async fn set(&self, name: &str, bytes: &str) {
        let payload = PutPayload::from(bytes.to_string());
        self.memory.put_opts(&Path::from(name), payload, PutOptions::default()).await.unwrap();
    }

    /// The content of a file.
    pub(super) async fn text(&self, name: &str) -> String {
        let found = self.memory.get_opts(&Path::from(name), GetOptions::default()).await.unwrap();
        String::from_utf8(found.bytes().await.unwrap().to_vec()).unwrap()
    }
}

impl Faults {
    fn check(&self, operation: Operation, name: &Path) -> Result<()> {
        self.seen.lock().unwrap().push((operation, name.to_string()));
        (self.fault.lock().unwrap())(operation, name.as_ref()).map_or(Ok(()), Err)
    }
}

impl Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faults")
    }
}

impl Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        place: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.faults.check(Operation::Put, place)?;
        self.memory.put_opts(place, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        place: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.faults.check(Operation::Put, place)?;
        let upload = self.memory.put_multipart_opts(place, options).await?;
        Ok(Box::new(Upload { upload, place: place.clone(), faults: self.faults.clone() }))
    }

    async fn get_opts(&self, place: &Path, options: GetOptions) -> Result<GetResult> {
        self.faults.check(Operation::Get, place)?;
        self.memory.get_opts(place, options).await
    }

    fn delete_stream(
        &self,
        places: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let faults = self.faults.clone();
        let places = places.map(move |place| {
            let place = place?;
            faults.check(Operation::Delete, &place)?;
            Ok(place)
        });
        self.memory.delete_stream(places.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.faults.check(Operation::List, &prefix.cloned().unwrap_or_default()) {
            Ok(()) => self.memory.list(prefix),
            Err(error) => stream::once(async { Err(error) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.faults.check(Operation::List, &prefix.cloned().unwrap_or_default())?;
        self.memory.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.memory.copy_opts(from, to, options).await
    }
}

#[derive(Debug)]
struct Upload {
    upload: Box<dyn MultipartUpload>,
    place: Path,
    faults: Faults,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, part: PutPayload) -> UploadPart {
        match self.faults.check(Operation::Part, &self.place) {
            Ok(()) => self.upload.put_part(part),
            Err(error) => async { Err(error) }.boxed(),
        }
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.faults.check(Operation::Complete, &self.place)?;
        self.upload.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.faults.check(Operation::Abort, &self.place)?;
        self.upload.abort().await
    }
}
