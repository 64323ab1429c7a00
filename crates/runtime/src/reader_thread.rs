//! The thread that reads samples from this worker's own files. It works beside the compute thread.

use crate::watchdog::TaskWatch;
use link::Payload;
use pipeline::ids::Ticket;
use pipeline::message::Failure;
use pipeline::samples::{DataSpec, DataTask, Reading};
use std::future::Future;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Duration;
use tokio::sync::mpsc as results;

/// A reader of samples. The worker crate implements it with the crate `data`.
pub trait SampleReader: Send {
    /// Opens a data set, and checks that its content is the expected one.
    ///
    /// # Errors
    /// The data set cannot be read, or differs.
    fn open(&mut self, spec: DataSpec) -> Result<(), Failure>;

    /// Reads samples. Returns a tensor for each column.
    ///
    /// # Errors
    /// The samples cannot be read.
    fn read(&mut self, reading: &Reading) -> Result<Vec<Payload>, Failure>;
}

type Done = (Ticket, Result<Vec<Payload>, Failure>);

enum Job {
    Task(Ticket, DataTask),
    Prefetch(Vec<Reading>),
}

/// The thread that reads samples. It starts with the first task, and ends after this is dropped.
pub(crate) struct ReaderThread {
    state: State,
    watch: TaskWatch,
}

enum State {
    Idle(Option<Box<dyn SampleReader>>),
    Running { todo: std::sync::mpsc::Sender<Job>, done: results::UnboundedReceiver<Done> },
}

impl ReaderThread {
    pub(crate) fn new(reader: Option<Box<dyn SampleReader>>) -> Self {
        ReaderThread { state: State::Idle(reader), watch: TaskWatch::default() }
    }

    /// A future that ends if one reading exceeds the limit: a file server that is gone reports no
    /// error. To open a data set may take any time, because it reads whole files.
    pub(crate) fn watchdog(&self, limit: Duration) -> impl Future<Output = ()> + Send + 'static {
        let watch = self.watch.clone();
        async move { watch.wait_until_hanging(limit).await }
    }

    /// Queues a task.
    ///
    /// # Errors
    /// This worker reads no samples, or its thread does not run.
    pub(crate) fn submit(&mut self, ticket: Ticket, task: DataTask) -> Result<(), String> {
        self.send(Job::Task(ticket, task))
    }

    /// Reads these samples before they are requested, and forgets those read ahead before.
    ///
    /// # Errors
    /// As for [`ReaderThread::submit`].
    pub(crate) fn read_ahead(&mut self, readings: Vec<Reading>) -> Result<(), String> {
        self.send(Job::Prefetch(readings))
    }

    fn send(&mut self, job: Job) -> Result<(), String> {
        if let State::Idle(reader) = &mut self.state {
            let reader = reader.take().ok_or("it has no reader of samples")?;
            let (todo, done) = start(reader, self.watch.clone())
                .map_err(|e| format!("cannot start a thread that reads samples: {e}"))?;
            self.state = State::Running { todo, done };
        }
        match &self.state {
            State::Running { todo, .. } => {
                todo.send(job).map_err(|_| "the thread that reads samples has ended".into())
            }
            State::Idle(_) => Ok(()),
        }
    }

    /// The next result. `None` if nothing was requested. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Done> {
        match &mut self.state {
            State::Running { done, .. } => done.recv().await,
            State::Idle(_) => None,
        }
    }
}

type Channels = (std::sync::mpsc::Sender<Job>, results::UnboundedReceiver<Done>);

fn start(reader: Box<dyn SampleReader>, watch: TaskWatch) -> std::io::Result<Channels> {
    let (sender, todo) = std::sync::mpsc::channel::<Job>();
    let (done, receiver) = results::unbounded_channel();
    std::thread::Builder::new().name("samples".into()).spawn(move || {
        let mut samples = PrefetchingReader { reader, watch, read_ahead: Vec::new() };
        for todo in todo {
            match todo {
                Job::Prefetch(readings) => samples.prefetch(readings),
                Job::Task(ticket, task) => {
                    if done.send((ticket, samples.execute(task))).is_err() {
                        return;
                    }
                }
            }
        }
    })?;
    Ok((sender, receiver))
}

/// A reader, and the samples that it has read before they were requested.
struct PrefetchingReader {
    reader: Box<dyn SampleReader>,
    watch: TaskWatch,
    read_ahead: Vec<(Reading, Vec<Payload>)>,
}

impl PrefetchingReader {
    fn execute(&mut self, task: DataTask) -> Result<Vec<Payload>, Failure> {
        match task {
            DataTask::Open(spec) => {
                catch_panic(|| self.reader.open(spec))?;
                Ok(Vec::new())
            }
            DataTask::Read(reading) => {
                match self.read_ahead.iter().position(|(read, _)| *read == reading) {
                    Some(place) => Ok(self.read_ahead.swap_remove(place).1),
                    None => self.read(&reading),
                }
            }
        }
    }

    fn read(&mut self, reading: &Reading) -> Result<Vec<Payload>, Failure> {
        self.watch.begin(false);
        let read = catch_panic(|| self.reader.read(reading));
        self.watch.end();
        read
    }

    fn prefetch(&mut self, readings: Vec<Reading>) {
        self.read_ahead.clear();
        for reading in readings {
            // A failure here repeats when the samples are requested, and is reported then.
            if let Ok(payloads) = self.read(&reading) {
                self.read_ahead.push((reading, payloads));
            }
        }
    }
}

/// Turns a panic into an error. A panic is a defect of ours, and must reach the boss as an error.
fn catch_panic<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let panicked =
        |_| Err(Failure::new("the thread that reads samples panicked; please report it"));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use layerspec::DType;
    use pipeline::samples::DataId;
    use pipeline::TensorMeta;
    use std::sync::{Arc, Mutex};

    /// Returns the numbers of samples as their values, and records the requests.
    struct Counting(Arc<Mutex<Vec<i64>>>);

    impl SampleReader for Counting {
        fn open(&mut self, _: DataSpec) -> Result<(), Failure> {
            Ok(())
        }

        fn read(&mut self, reading: &Reading) -> Result<Vec<Payload>, Failure> {
            let numbers = &reading.batch[reading.part.clone()];
            self.0.lock().unwrap().extend(numbers);
            match numbers {
                [i64::MIN] => panic!("a defect"),
                [-1] => Err(Failure::new("no sample -1")),
                _ => {
                    let meta =
                        TensorMeta { dtype: DType::UInt8, shape: vec![numbers.len() as u64] };
                    Ok(vec![Payload {
                        meta,
                        bytes: numbers.iter().map(|n| *n as u8).collect::<Vec<_>>().into(),
                    }])
                }
            }
        }
    }

    fn reading(batch: &[i64]) -> Reading {
        Reading {
            data: DataId([0; 32]),
            batch: batch.into(),
            part: 0..batch.len(),
            columns: Vec::new(),
        }
    }

    #[test]
    fn what_was_read_ahead_is_not_read_again() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let mut samples = PrefetchingReader {
            reader: Box::new(Counting(asked.clone())),
            watch: TaskWatch::default(),
            read_ahead: Vec::new(),
        };
        let read = |samples: &mut PrefetchingReader, batch: &[i64]| {
            let result = samples.execute(DataTask::Read(reading(batch)));
            result.map(|payloads| payloads[0].bytes.to_vec()).map_err(|failure| failure.message)
        };
        samples.prefetch(vec![reading(&[1, 2]), reading(&[-1]), reading(&[3])]);
        assert_eq!(read(&mut samples, &[3]), Ok(vec![3]));
        assert_eq!(read(&mut samples, &[1, 2]), Ok(vec![1, 2]));
        assert_eq!(*asked.lock().unwrap(), [1, 2, -1, 3]);
        assert_eq!(read(&mut samples, &[3]), Ok(vec![3]));
        assert_eq!(read(&mut samples, &[-1]), Err("no sample -1".into()));
        assert_eq!(*asked.lock().unwrap(), [1, 2, -1, 3, 3, -1]);
        samples.prefetch(vec![reading(&[4])]);
        samples.prefetch(vec![reading(&[5])]);
        assert_eq!(samples.read_ahead.len(), 1);
        let panicked = read(&mut samples, &[i64::MIN]).unwrap_err();
        assert!(panicked.contains("please report it"), "{panicked}");
    }

    /// Opens and reads only when its gate opens.
    struct Gated(std::sync::mpsc::Receiver<()>);

    impl SampleReader for Gated {
        fn open(&mut self, _: DataSpec) -> Result<(), Failure> {
            self.0.recv().map_err(|_| Failure::new("the gate is gone"))
        }

        fn read(&mut self, _: &Reading) -> Result<Vec<Payload>, Failure> {
            self.0.recv().map(|()| Vec::new()).map_err(|_| Failure::new("the gate is gone"))
        }
    }

    #[tokio::test]
    async fn a_reading_that_never_ends_is_found() {
        let (gate, wait) = std::sync::mpsc::channel();
        let limit = Duration::from_millis(50);
        let mut thread = ReaderThread::new(Some(Box::new(Gated(wait))));
        let hangs = thread.watchdog(limit);
        tokio::pin!(hangs);
        thread.submit(Ticket(1), DataTask::Read(reading(&[1]))).unwrap();
        gate.send(()).unwrap();
        assert!(thread.next().await.unwrap().1.unwrap().is_empty());
        assert!(tokio::time::timeout(2 * limit, &mut hangs).await.is_err(), "nothing is read");
        thread.read_ahead(vec![reading(&[2])]).unwrap();
        tokio::time::timeout(Duration::from_secs(60), hangs).await.unwrap();
        drop(gate);
    }
}
