//! Builds the fake CUDA device, and gives the environment in which programs see its GPUs.
//!
//! ```text
//! crates/testkit/fake_cuda/src/*.cpp -> target/fake_gpu/objects -> tree/torch/lib/libtorch_cuda.so
//!                          libtorch's own libraries, as links --------^  (LD_LIBRARY_PATH)
//! ```

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version of libtorch whose interfaces the fake implements.
const VERSION: &str = "2.11";
const FLAGS: [&str; 3] = ["-std=c++17", "-fPIC", "-w"];
const SOURCES: &str = "crates/testkit/fake_cuda/src";
/// libtorch's headers that most sources include. Compiled once, they take a third of the time.
const PRECOMPILED: &str = "#include <ATen/ATen.h>\n#include <torch/library.h>\n";
const OWN_TESTS: &str = "crates/testkit/fake_cuda/tests";

/// The stand-in for NVIDIA's driver.
const DRIVER: &str = "crates/testkit/fake_cuda/driver.c";

/// The fake CUDA device, built.
#[derive(Clone, Debug)]
pub struct FakeGpu {
    /// The folder that takes the place of libtorch's.
    libraries: PathBuf,
    build: Build,
}

/// Where and how to compile.
#[derive(Clone, Debug)]
struct Build {
    /// The folder of objects and libraries.
    folder: PathBuf,
    libtorch: PathBuf,
    assertions: Assertions,
}

/// Whether libtorch's assertions in headers are compiled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Assertions {
    /// They are. They find references to freed tensors.
    On,
    /// They are not, as in libtorch's own build.
    Off,
}

impl FakeGpu {
    /// Builds what has changed since the last time. Processes take turns.
    ///
    /// # Errors
    /// This machine cannot have the fake: it is not Linux, or has another version of libtorch.
    ///
    /// # Panics
    /// A source does not compile.
    pub fn build(assertions: Assertions) -> Result<Self, String> {
        if !cfg!(target_os = "linux") {
            return Err("the fake CUDA device is for Linux".into());
        }
        let libtorch = libtorch();
        let found = fs::read_to_string(libtorch.join("build-version")).unwrap_or_default();
        if !found.starts_with(VERSION) {
            return Err(format!(
                "the fake CUDA device is for libtorch {VERSION}, and {} is `{}`",
                libtorch.display(),
                found.trim()
            ));
        }
        if !libtorch.join("include/ATen/detail/CUDAHooksInterface.h").is_file() {
            return Err(format!("{} has no headers of CUDA", libtorch.display()));
        }
        let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let folder = target.unwrap_or_else(|| crate::repository("target")).join("fake_gpu");
        fs::create_dir_all(folder.join("objects")).unwrap();
        let build = Build { folder, libtorch, assertions };
        let _lock = build.lock();
        let objects = build.compile(&sources(&crate::repository(SOURCES)));
        let others = [DRIVER, crate::fake_nccl::SOURCE]
            .map(|source| fs::read_to_string(crate::repository(source)).unwrap());
        let tree = format!("tree-{:016x}", hash_of(&(&objects, others, &build.libtorch)));
        let tree = build.folder.join(tree);
        let libraries = tree.join("torch/lib");
        if !libraries.is_dir() {
            let draft = tempfile::tempdir_in(&build.folder).unwrap();
            build.fill(draft.path(), &objects);
            fs::rename(draft.keep(), &tree).unwrap();
        }
        Ok(FakeGpu { libraries, build })
    }

    /// Compiles one of the fake's own tests. The command runs it.
    ///
    /// # Panics
    /// It does not compile.
    pub fn own_test(&self, name: &str) -> Command {
        let _lock = self.build.lock();
        let source = crate::repository(OWN_TESTS).join(format!("{name}.cpp"));
        let [object] = &self.build.compile(&[source])[..] else { panic!("one source") };
        let program = object.with_extension("program");
        if !program.is_file() {
            let draft = object.with_extension("program-draft");
            let mut link = self.build.link();
            link.arg(object).args(["-ltorch_cpu", "-lc10", "-lpthread", "-ldl"]);
            let libraries = self.build.libtorch.join("lib");
            link.arg(format!("-Wl,-rpath,{}", libraries.display())).arg("-Wl,--export-dynamic");
            run(link.arg("-o").arg(&draft));
            fs::rename(draft, &program).unwrap();
        }
        let mut command = Command::new(program);
        command.env("FAKE", self.libraries.join("libtorch_cuda.so"));
        command
    }

    /// The variables with which a program of ours, or a test, sees the fake's GPUs.
    pub fn environment(&self) -> Vec<(String, String)> {
        let inherited = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        let own = self.libraries.display().to_string();
        let path = if inherited.is_empty() { own } else { format!("{own}:{inherited}") };
        vec![("LD_LIBRARY_PATH".into(), path)]
    }
}

/// What programs did on the fake's GPUs. The fields are the counters of `fakecuda.h`, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Waits of the host for a whole device.
    pub device_sync: u64,
    /// Waits of the host for a stream.
    pub stream_sync: u64,
    /// Waits of the host for an event.
    pub event_sync: u64,
    /// Numbers that the host read, as with `item`.
    pub item: u64,
    /// Copies from or to the host for which the host waited.
    pub blocking_copy: u64,
    /// Waits before an operator that runs at once. A GPU has none of these.
    pub drain: u64,
    /// Operators that ran later than their call.
    pub deferred: u64,
    /// Operators that ran at their call.
    pub immediate: u64,
    /// Allocations that failed.
    pub oom: u64,
    /// Allocations of device memory.
    pub alloc: u64,
    /// Kernels that were launched. Copies are none.
    pub kernel: u64,
    /// Copies to a device for which the host waited.
    pub to_device_blocking: u64,
    /// Copies to a device for which the host did not wait.
    pub to_device_async: u64,
    /// Copies to the host for which the host waited.
    pub to_host_blocking: u64,
    /// Copies to the host for which the host did not wait.
    pub to_host_async: u64,
    /// Copies on a device and between devices.
    pub on_devices: u64,
    /// Devices on which a process made a context.
    pub context: u64,
}

/// Reads the file that `FAKECUDA_COUNTS` named, while its programs run or after they have ended.
///
/// # Errors
/// The file cannot be read, or has too few bytes.
pub fn counts(file: &Path) -> Result<Counts, String> {
    let bytes = fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let mut numbers =
        bytes.chunks_exact(8).map(|number| u64::from_le_bytes(number.try_into().unwrap()));
    let mut next = || numbers.next().ok_or_else(|| format!("{}: too short", file.display()));
    // The expressions of a struct are evaluated in this order.
    Ok(Counts {
        device_sync: next()?,
        stream_sync: next()?,
        event_sync: next()?,
        item: next()?,
        blocking_copy: next()?,
        drain: next()?,
        deferred: next()?,
        immediate: next()?,
        oom: next()?,
        alloc: next()?,
        kernel: next()?,
        to_device_blocking: next()?,
        to_device_async: next()?,
        to_host_blocking: next()?,
        to_host_async: next()?,
        on_devices: next()?,
        context: next()?,
    })
}

/// The folder of libtorch with which our programs are built.
fn libtorch() -> PathBuf {
    let named = std::env::var_os("LIBTORCH").map(PathBuf::from);
    let named = named.unwrap_or_else(|| crate::repository(".libtorch"));
    named.canonicalize().unwrap_or(named)
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The C++ files of a folder, in the order of their names.
fn sources(folder: &Path) -> Vec<PathBuf> {
    files(folder, "cpp")
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        all.filter(|file| file.extension().is_some_and(|end| end == ending)).collect();
    files.sort();
    files
}

impl Build {
    /// Holds other processes back.
    fn lock(&self) -> File {
        let lock = File::create(self.folder.join("lock")).unwrap();
        lock.lock().unwrap();
        lock
    }

    /// Compiles each source whose text, or a header's, has changed. Returns the objects.
    fn compile(&self, sources: &[PathBuf]) -> Vec<PathBuf> {
        let headers =
            [files(&crate::repository(SOURCES), "h"), files(&crate::repository(OWN_TESTS), "h")];
        let headers: Vec<String> =
            headers.concat().iter().map(|file| fs::read_to_string(file).unwrap()).collect();
        let object = |source: &PathBuf| {
            let text = fs::read_to_string(source).unwrap();
            let how = (FLAGS, self.assertions, &self.libtorch, compiler());
            let name = source.file_stem().unwrap().to_string_lossy();
            self.folder.join(format!("objects/{name}-{:016x}.o", hash_of(&(text, &headers, how))))
        };
        let objects: Vec<PathBuf> = sources.iter().map(object).collect();
        let missing: Vec<_> =
            sources.iter().zip(&objects).filter(|(_, object)| !object.is_file()).collect();
        if missing.is_empty() {
            return objects;
        }
        let header = self.precompiled_header();
        let lanes = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for lane in 0..lanes {
                let (own, header) = (missing.iter().skip(lane).step_by(lanes), &header);
                scope.spawn(move || {
                    own.for_each(|(source, object)| self.compile_one(source, object, header));
                });
            }
        });
        objects
    }

    fn compile_one(&self, source: &Path, object: &Path, header: &Path) {
        let draft = object.with_extension("draft");
        let mut command = self.compiler();
        command.arg("-include").arg(header);
        run(command.arg("-c").arg(source).arg("-o").arg(&draft));
        fs::rename(draft, object).unwrap();
    }

    /// Compiles [`PRECOMPILED`]. A compiler that cannot use the result reads the header itself.
    fn precompiled_header(&self) -> PathBuf {
        let how = (PRECOMPILED, FLAGS, self.assertions, &self.libtorch, compiler());
        let folder = self.folder.join(format!("header-{:016x}", hash_of(&how)));
        let header = folder.join("precompiled.h");
        let compiled = folder.join("precompiled.h.gch");
        if !compiled.is_file() {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&header, PRECOMPILED).unwrap();
            let draft = folder.join("draft");
            run(self.compiler().args(["-x", "c++-header"]).arg(&header).arg("-o").arg(&draft));
            fs::rename(draft, compiled).unwrap();
        }
        header
    }

    /// The compiler with the flags of all sources.
    fn compiler(&self) -> Command {
        let mut command = Command::new(compiler());
        command.args(FLAGS).arg("-I").arg(self.libtorch.join("include"));
        command.arg("-I").arg(self.libtorch.join("include/torch/csrc/api/include"));
        command.arg("-I").arg(crate::repository(SOURCES));
        match self.assertions {
            // Only short tests run it, and it is built in half the time.
            Assertions::On => command.arg("-O0"),
            Assertions::Off => command.args(["-O1", "-DNDEBUG"]),
        };
        command
    }

    /// A command that links with libtorch's CPU half.
    fn link(&self) -> Command {
        let mut link = Command::new(compiler());
        link.arg("-L").arg(self.libtorch.join("lib"));
        let runtime = self.libtorch.join("../nvidia/cu13/lib");
        link.arg(format!("-Wl,-rpath-link,{}", runtime.display()));
        link
    }

    /// Fills a folder as libtorch's wheel is, with the fake in place of libtorch_cuda.
    fn fill(&self, tree: &Path, objects: &[PathBuf]) {
        let libraries = tree.join("torch/lib");
        fs::create_dir_all(&libraries).unwrap();
        // libtorch_cuda's place, and the driver's.
        let ours = ["libtorch_cuda.so", "libc10_cuda.so", "libcuda.so.1", "libnccl.so.2"];
        for entry in fs::read_dir(self.libtorch.join("lib")).unwrap() {
            let entry = entry.unwrap();
            if !ours.iter().any(|name| entry.file_name() == *name) {
                symlink(entry.path(), libraries.join(entry.file_name())).unwrap();
            }
        }
        // libtorch_cpu looks for NVIDIA's runtime beside its folder.
        if let Ok(nvidia) = self.libtorch.join("../nvidia").canonicalize() {
            symlink(nvidia, tree.join("nvidia")).unwrap();
        }
        let mut link = self.link();
        link.args(["-shared", "-Wl,--no-undefined", "-Wl,-soname,libtorch_cuda.so"]).args(objects);
        link.args(["-ltorch_cpu", "-lc10", "-lpthread", "-ldl"]);
        run(link.arg("-o").arg(libraries.join("libtorch_cuda.so")));
        let empty = tree.join("empty.c");
        fs::write(&empty, "typedef int empty;\n").unwrap();
        let driver = crate::repository(DRIVER);
        for (name, source) in [("libc10_cuda.so", &empty), ("libcuda.so.1", &driver)] {
            let mut link = Command::new(compiler());
            link.args(["-shared", "-fPIC", "-x", "c"]).arg(source);
            run(link.arg("-o").arg(libraries.join(name)));
        }
        let nccl = crate::fake_nccl::library(&[]);
        fs::copy(nccl, libraries.join("libnccl.so.2")).unwrap();
    }
}

fn compiler() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "c++".into())
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
}
