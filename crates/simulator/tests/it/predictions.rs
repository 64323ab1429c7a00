//! The timeline compared with the sessions: predicted and real times are equal, action by action.

use crate::calls::Call;
use crate::faults::Faults;
use crate::network::{exact, Conditions};
use crate::seeds::each;
use crate::{models, user, Setting};
use pipeline::ids::WorkerId;
use pipeline::schedule::{timeline, Action, Costs, Terms};
use pipeline::ScheduleKind;

const DELAY: u64 = 307;

#[test]
fn simulator_what_is_predicted_is_what_runs() {
    let kinds =
        [ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::ZbH1, ScheduleKind::Ready];
    let cases = kinds
        .into_iter()
        .flat_map(|kind| [1, 2, 3, 5, 8, 17].map(|microbatches| (kind, microbatches)));
    let cases =
        cases.flat_map(|(kind, m)| ["chain", "skip", "many-uses"].map(|model| (kind, m, model)));
    each(cases, |(kind, microbatches, model), log| {
        let graph = models::model(model);
        let setting = Setting::plain(&["2", "3", "5"], kind, microbatches);
        let plan = setting.plan(&graph);
        let schedule = plan.schedule_for(&Terms::new(kind, microbatches)).expect("a good schedule");
        let mut costs = Costs::of_stages(plan.stages.iter().map(|s| exact(s.stage)).collect());
        (costs.link.latency, costs.boss_link.latency) = (DELAY, DELAY);
        let predicted = timeline(&schedule, &costs).expect("no deadlock");

        let mut user = user(
            &graph,
            &setting,
            1,
            Conditions { delay: DELAY, exact: true, ..Conditions::CALM },
            Faults::default(),
            log,
        );
        for call in [Call::Distribute, Call::Optimizer(1)] {
            user.call(call).expect("no trouble");
        }
        let asked = user.world.now();
        user.call(Call::Train(1)).expect("no trouble");
        let whole = user.world.now() - asked;
        for (worker, list) in predicted.workers.iter().enumerate() {
            let of_worker = user.world.spans.iter().filter(|s| s.worker == WorkerId(worker as u16));
            let ran: Vec<(Action, u64)> =
                of_worker.map(|s| (s.action, s.start.0 - asked)).collect();
            let predicted: Vec<_> = list.iter().map(|i| (i.action, i.start)).collect();
            assert_eq!(ran, predicted, "worker {worker}");
        }
        assert_eq!(whole, predicted.step_time, "the whole step");
        user.stop();
    });
}
