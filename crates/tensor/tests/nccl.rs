//! Sums over ranks, with the stand-in for NCCL, which is loaded in the same way as NCCL.

#![allow(clippy::unwrap_used, clippy::panic, reason = "everything here is part of a test")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Once};
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor};
use tensor::nccl::{Communicator, Nccl, NcclError, Rank};
use testkit::fake_nccl;

fn rank_of(index: u16, count: u16) -> Rank {
    Rank { index, count }
}

fn nccl() -> Arc<Nccl> {
    Nccl::load_for_host(&fake_nccl::library(&[])).unwrap()
}

fn never() -> bool {
    false
}

/// The work of each rank with its communicator.
fn ranks<T: Send>(
    nccl: &Arc<Nccl>,
    count: u16,
    work: impl Fn(u16, Communicator) -> T + Sync,
) -> Vec<T> {
    let id = nccl.unique_id().unwrap();
    let (work, id) = (&work, &id);
    std::thread::scope(|scope| {
        let rank = |rank| {
            scope.spawn(move || {
                work(
                    rank,
                    Communicator::new(nccl, id, rank_of(rank, count), Device::Cpu, &never).unwrap(),
                )
            })
        };
        let running: Vec<_> = (0..count).map(rank).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn numbers(from: i64, count: i64) -> Tensor {
    Tensor::arange_start(from, from + count, (Kind::Float, Device::Cpu))
}

#[test]
fn sums_are_over_all_ranks_in_the_order_of_the_calls() {
    let nccl = nccl();
    assert_eq!(nccl.version(), 22_703);
    for count in 1..=3 {
        let sums = ranks(&nccl, count, |rank, mut communicator| {
            // More than the stand-in takes at once, nothing, and one number.
            let mut tensors =
                [numbers(i64::from(rank), 40_000), numbers(0, 0), numbers(10 * i64::from(rank), 1)];
            tensors.iter_mut().for_each(|tensor| communicator.all_reduce(tensor, &never).unwrap());
            communicator.finish(&never).unwrap();
            tensors
        });
        let all = i64::from(count);
        let of_ranks = (all * (all - 1) / 2) as f64;
        let expected = numbers(0, 40_000) * all + of_ranks;
        for [long, none, one] in sums {
            assert_eq!(long, expected);
            assert_eq!((none.numel(), one.double_value(&[0])), (0, 10.0 * of_ranks));
        }
    }
}

#[test]
fn who_waits_for_a_rank_that_does_not_come_can_be_called_off() {
    let nccl = nccl();
    let (called_off, waiting) = (AtomicBool::new(false), Barrier::new(3));
    let results = ranks(&nccl, 3, |rank, mut communicator| {
        if rank == 2 {
            waiting.wait();
            called_off.store(true, Ordering::Release);
            return (Ok(()), Ok(()));
        }
        let (mut tensor, told) = (numbers(0, 5), Once::new());
        // Waiting calls ask this.
        let asked = || {
            told.call_once(|| {
                waiting.wait();
            });
            called_off.load(Ordering::Acquire)
        };
        let first = communicator.all_reduce(&mut tensor, &asked);
        (first, communicator.all_reduce(&mut tensor, &never))
    });
    let attempted = "a sum over replicas";
    for result in &results[..2] {
        assert_eq!(
            *result,
            (Err(NcclError::Interrupted { attempted }), Err(NcclError::CommunicatorFailed))
        );
    }
    // The other ranks never join.
    let (id, begun) = (nccl.unique_id().unwrap(), Instant::now());
    let late = || begun.elapsed() > Duration::from_millis(50);
    let alone = Communicator::new(&nccl, &id, rank_of(1, 2), Device::Cpu, &late).unwrap_err();
    assert!(matches!(alone, NcclError::Interrupted { .. }), "{alone}");
}

#[test]
fn what_cannot_be_summed_is_an_error() {
    let nccl = nccl();
    ranks(&nccl, 1, |_, mut communicator| {
        let wrong =
            [numbers(0, 4).to_kind(Kind::Double), numbers(0, 4).view([2, 2]).tr(), Tensor::new()];
        for mut tensor in wrong {
            let error = communicator.all_reduce(&mut tensor, &never).unwrap_err();
            assert!(error.to_string().contains("float32 tensor in one piece"), "{error}");
        }
        // NCCL made no error, and the communicator still works.
        communicator.all_reduce(&mut numbers(0, 1), &never).unwrap();
    });
    let different = ranks(&nccl, 2, |rank, mut communicator| {
        communicator
            .all_reduce(&mut numbers(0, 1 + i64::from(rank)), &never)
            .unwrap_err()
            .to_string()
    });
    assert!(
        different.iter().all(|error| error.contains("NCCL says invalid usage")),
        "{different:?}"
    );
    let id = nccl.unique_id().unwrap();
    let beyond = Communicator::new(&nccl, &id, rank_of(2, 2), Device::Cpu, &never).unwrap_err();
    assert_eq!(beyond.to_string(), "rank 2 of 2 ranks");
    let unknown =
        Communicator::new(&nccl, &[b'x'; 128], rank_of(0, 1), Device::Cpu, &never).unwrap_err();
    assert!(
        unknown.to_string().contains("NCCL says unhandled system error (nobody made this id)"),
        "{unknown}"
    );
}

/// The errors of one rank, in a process of its own for each, because the stand-in reads what to do
/// from the environment.
#[test]
fn errors_of_nccl_say_whose_they_are() {
    const VARIABLE: &str = "FAKE_NCCL_FAIL";
    let text = |reason: &str| format!("a sum over replicas: NCCL says {reason}");
    let cuda = "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    let remote = "remote process exited or there was a network error";
    let [full, broken, lost, other] = [
        text(&format!("{cuda} (Failed to CUDA malloc 4194304 bytes)")),
        text(&format!("{cuda} (Cuda failure 700 'an illegal memory access was encountered')")),
        text(&format!(
            "{remote} (socketProgress: Connection closed by remote peer localhost<40001>)"
        )),
        text(
            "unhandled system error (Error while creating shared memory segment \
             /dev/shm/nccl-Xfe3b2)",
        ),
    ];
    let making = full.replace("a sum over replicas", "finding the other replicas");
    // The fault, its text, and what it is.
    let cases = [
        ("2:out-of-memory", full, "out of memory"),
        ("2:illegal-address", broken, "device broken"),
        ("2:peer", lost, "remote"),
        ("2:system", other, "other"),
        ("0:out-of-memory", making, "out of memory"),
    ];
    if let Ok(fault) = std::env::var(VARIABLE) {
        let error = failure_of_one_rank();
        let kind = match &error {
            NcclError::Remote { .. } => "remote",
            full if full.is_out_of_memory() => "out of memory",
            broken if broken.is_device_broken() => "device broken",
            _ => "other",
        };
        let case = cases.into_iter().find(|case| case.0 == fault).unwrap();
        assert_eq!((error.to_string(), kind), (case.1, case.2));
        return;
    }
    for (fault, ..) in cases {
        let program = std::env::current_exe().unwrap();
        let mut one = std::process::Command::new(program);
        one.args(["--exact", "errors_of_nccl_say_whose_they_are"]).env(VARIABLE, fault);
        let output = one.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{fault}: {said}");
    }
}

/// The first error of one rank that sums three times.
fn failure_of_one_rank() -> NcclError {
    let nccl = nccl();
    let id = nccl.unique_id().unwrap();
    let made = Communicator::new(&nccl, &id, rank_of(0, 1), Device::Cpu, &never);
    let mut communicator = match made {
        Ok(communicator) => communicator,
        Err(error) => return error,
    };
    let mut sum = || communicator.all_reduce(&mut numbers(0, 4), &never);
    let results = [sum(), sum(), sum()];
    let [first, second, third] = &results;
    assert!(first.is_ok() && matches!(third, Err(NcclError::CommunicatorFailed)), "{results:?}");
    second.clone().unwrap_err()
}

#[test]
fn a_library_that_will_not_do_is_an_error_that_names_it() {
    let old = fake_nccl::library(&["-DVERSION=21304"]);
    let error = Nccl::load(Some(&old)).unwrap_err().to_string();
    assert!(error.ends_with("is NCCL 2.13.4; at least 2.14.0 is needed"), "{error}");
    let lacking = fake_nccl::library(&["-DOLD"]);
    let error = Nccl::load(Some(&lacking)).unwrap_err().to_string();
    assert!(error.ends_with("has no `ncclGetUniqueId`: it is not NCCL 2.14 or newer"), "{error}");
    let error = Nccl::load(Some(Path::new("/nowhere/nccl.so"))).unwrap_err().to_string();
    assert!(error.starts_with("/nowhere/nccl.so cannot be loaded: "), "{error}");
    // As a worker loads it, it is for GPUs, and no tensor of the host is given to it.
    let nccl = Nccl::load(Some(&fake_nccl::library(&[]))).unwrap();
    assert!(nccl.supports(Device::Cuda(0)) && !nccl.supports(Device::Cpu));
    let error =
        Communicator::new(&nccl, &[0; 128], rank_of(0, 1), Device::Cpu, &never).unwrap_err();
    assert_eq!(error.to_string(), "NCCL sums on GPUs with CUDA, and this worker computes on cpu");
}

/// NCCL itself, which `BOSSMAN_NCCL` names: `cargo test -p tensor --test nccl -- --ignored
/// --nocapture`. With one GPU one rank sums. Without a GPU the error states the reason.
#[test]
#[ignore = "needs the library, which is large"]
fn the_library_itself() {
    let beyond = tensor::nccl::restrict_to_loopback();
    let cuda = tensor::cuda::load();
    let file = std::env::var_os("BOSSMAN_NCCL").map(std::path::PathBuf::from);
    let nccl = Nccl::load(file.as_deref()).unwrap();
    println!(
        "{cuda}; NCCL {}, beyond this machine: {beyond}",
        tensor::nccl::version_name(nccl.version())
    );
    let id = nccl.unique_id().unwrap();
    let device = Device::Cuda(0);
    if !tensor::device::all().contains(&device) {
        let error = Communicator::new(&nccl, &id, rank_of(0, 1), device, &never).unwrap_err();
        return println!("without a GPU: {error}");
    }
    println!("on the GPU at {:?}", tensor::cuda::bus_id(0));
    let mut communicator = Communicator::new(&nccl, &id, rank_of(0, 1), device, &never).unwrap();
    let mut tensor = numbers(0, 40_000).to_device(device);
    communicator.all_reduce(&mut tensor, &never).unwrap();
    communicator.finish(&never).unwrap();
    assert_eq!(tensor.to_device(Device::Cpu), numbers(0, 40_000));
    // Two ranks on one GPU are refused, by both.
    let id = nccl.unique_id().unwrap();
    let errors = std::thread::scope(|scope| {
        let (nccl, id) = (&nccl, &id);
        let rank = |rank| {
            scope.spawn(move || Communicator::new(nccl, id, rank_of(rank, 2), device, &never).err())
        };
        [0, 1].map(rank).map(|thread| thread.join().unwrap())
    });
    println!("two ranks on one GPU: {errors:?}");
    assert!(errors.iter().all(Option::is_some));
}
