//! The waits of schedules, compared with those of the papers.

use super::schedules::{all, layout, name, played, schedule};
use pipeline::replicas::WorkerGroups;
use pipeline::schedule::{check, Costs, Layout, Placement, Schedule, StageTimes, Terms};
use pipeline::ScheduleKind::{GPipe, Interleaved, OneFOneB, Ready, ZbH1, ZbV};

/// The time of Megatron-LM's lists for full groups, without the microbatches that the last group
/// lacks.
fn end_of_filled_groups(schedule: &Schedule, costs: &Costs) -> u64 {
    let (layout, microbatches) = (&schedule.layout, schedule.microbatches);
    let full = microbatches.next_multiple_of(layout.workers() as u32);
    let mut filled =
        Schedule::new(layout, &Terms::new(Interleaved, full)).expect("a placement that fits");
    filled.microbatches = microbatches;
    for list in &mut filled.workers {
        list.retain(|action| action.microbatch().is_none_or(|m| m < microbatches));
    }
    check(&filled).expect("what is left is whole");
    played(&filled, costs).end()
}

#[test]
fn the_bubble_is_the_textbooks() {
    for schedule in all() {
        let layout = &schedule.layout;
        let (workers, chunks) =
            (layout.workers() as u64, (layout.stages() / layout.workers()) as u64);
        let microbatches = u64::from(schedule.microbatches);
        let unit = StageTimes {
            forward: 2,
            backward: 4,
            backward_input: 2,
            backward_weight: 2,
            optim_step: 0,
        };
        let costs = Costs::of_stages(vec![unit; layout.stages()]);
        let end = played(&schedule, &costs).end();
        let work = 6 * microbatches * chunks;
        // The most that a worker holds in interleaved 1F1B.
        let most = 2 * (workers - 1) + (chunks - 1) * workers + 1;
        let what = name(&schedule);
        match schedule.kind {
            // Breadth first, as long as there are enough to fill the pipeline.
            GPipe if chunks > 1 && microbatches < workers => {
                assert!(end <= work + 6 * (workers * chunks - 1), "{what}: {end}");
            }
            GPipe | OneFOneB => assert_eq!(end, work + 6 * (workers - 1), "{what}"),
            // Only if the groups are full.
            Interleaved if microbatches % workers == 0 => {
                assert_eq!(end, work + 6 * (workers - 1), "{what}")
            }
            // One group of all microbatches, if that needs no more memory.
            Interleaved if microbatches > workers && microbatches * chunks <= most => {
                assert_eq!(end, work + 6 * (workers - 1), "{what}")
            }
            Interleaved => assert!(end <= end_of_filled_groups(&schedule, &costs), "{what}: {end}"),
            // (p - 1)(F + I - W). Fewer microbatches have fewer weight halves to fill the waits.
            ZbH1 => {
                let filled = 2 * (microbatches.min(workers) - 1);
                assert_eq!(end, work + 4 * (workers - 1) - filled, "{what}")
            }
            ZbV if microbatches >= 2 * workers => {
                assert!(end <= work + 3 * workers, "{what}: {end} for {work}")
            }
            ZbV | Ready => {
                assert!(end <= work + 6 * (workers * chunks - 1), "{what}: {end}")
            }
        }
    }
}

#[test]
fn zb_h1_waits_as_in_the_paper_for_all_times() {
    for (forward, input, weight) in [(1, 1, 1), (2, 2, 1), (3, 4, 2), (2, 3, 2), (3, 2, 2)] {
        for workers in 1..=6 {
            for microbatches in 1..=17 {
                let times = StageTimes {
                    forward,
                    backward: input + weight,
                    backward_input: input,
                    backward_weight: weight,
                    optim_step: 0,
                };
                let costs = Costs::of_stages(vec![times; usize::from(workers)]);
                let terms = Terms { costs: Some(costs.clone()), ..Terms::new(ZbH1, microbatches) };
                let schedule = Schedule::new(&layout(ZbH1, workers), &terms).expect("it fits");
                let (others, microbatches) = (u64::from(workers - 1), u64::from(microbatches));
                let bubble = others * (forward + input) - others.min(microbatches - 1) * weight;
                assert_eq!(
                    played(&schedule, &costs).end(),
                    microbatches * (forward + input + weight) + bubble,
                    "{}, times {forward}, {input} and {weight}",
                    name(&schedule)
                );
            }
        }
    }
}

#[test]
fn splitting_backward_shortens_the_step() {
    let end = |kind, workers, microbatches| {
        let schedule = schedule(kind, workers, microbatches);
        // A stage of two on a worker has half its layers.
        let halves = 2 / (schedule.layout.stages() as u64 / u64::from(workers));
        let times = StageTimes {
            forward: halves,
            backward: 2 * halves,
            backward_input: halves,
            backward_weight: halves,
            optim_step: 0,
        };
        played(&schedule, &Costs::of_stages(vec![times; schedule.layout.stages()])).end()
    };
    for (workers, microbatches) in [(2, 4), (2, 8), (4, 8), (4, 16), (6, 17)] {
        let (plain, h1, v) = (
            end(OneFOneB, workers, microbatches),
            end(ZbH1, workers, microbatches),
            end(ZbV, workers, microbatches),
        );
        assert!(
            h1 < plain && v < h1,
            "{workers} workers, {microbatches} microbatches: {plain}, {h1}, {v}"
        );
        let interleaved = end(Interleaved, workers, microbatches);
        assert!(
            interleaved < plain || microbatches % u32::from(workers) > 0,
            "{workers}, {microbatches}: {interleaved}"
        );
    }
}

#[test]
fn gpipe_keeps_replicas_of_unequal_stages_busy() {
    // Twice the work on two replicas: every worker is as busy as the others.
    for (replicas, microbatches) in [(&[1, 2][..], 8), (&[2, 1], 8), (&[2, 1, 2], 18)] {
        let layout =
            Layout::chain(Placement::of(GPipe, None).stage_placement(&WorkerGroups::of(replicas)));
        let times = |replicas: &u16| {
            let forward = u64::from(*replicas);
            StageTimes { forward, backward: 2 * forward, ..StageTimes::default() }
        };
        let costs = Costs::of_stages(replicas.iter().map(times).collect());
        let end = |costs: &Costs, measured: Option<Costs>| {
            let terms = Terms { costs: measured, ..Terms::new(GPipe, microbatches) };
            let schedule = Schedule::new(&layout, &terms).expect("it fits");
            check(&schedule).expect("it ends");
            played(&schedule, costs).end()
        };
        let work = 3 * u64::from(microbatches);
        // A microbatch crosses all stages, and another replica has its turn first.
        let bubble = 3 * replicas.iter().map(|n| u64::from(*n)).sum::<u64>();
        let unknown = end(&costs, None);
        assert!(unknown <= work + bubble, "{replicas:?}: {unknown}, {work} of it work");
        assert!(end(&costs, Some(costs.clone())) <= unknown, "{replicas:?}, measured");
        // If the replicas have little to do, the order of numbers is shorter.
        let equal = Costs::unit(layout.stages());
        assert!(end(&equal, Some(equal.clone())) <= end(&equal, None), "{replicas:?}, equal");
    }
}
