//! A schedule as text: a row for each worker, and a column for each unit of time.

use super::{Action, Timeline};

/// `F2` is the forward pass of microbatch 2, and `B2` its backward pass (`<<` while it lasts). `A`
/// is the sum over replicas, and `S` the optimizer step. `G` gathers the shards of other replicas,
/// `P` sends this replica's shard, and `L` frees the others' shards. `.` is an idle unit. If a
/// worker has several stages, actions have the stage: `F2/3`.
pub fn picture(timeline: &Timeline) -> String {
    let one_stage_each = timeline.workers.iter().all(|list| {
        let first = list.first().map(|i| i.action.stage());
        list.iter().all(|i| Some(i.action.stage()) == first)
    });
    let label = |action: &Action| {
        let mut text = match *action {
            Action::Forward { microbatch, .. } => format!("F{microbatch}"),
            Action::Backward { microbatch, .. } => format!("B{microbatch}"),
            Action::BackwardInput { microbatch, .. } => format!("I{microbatch}"),
            Action::BackwardWeight { microbatch, .. } => format!("W{microbatch}"),
            Action::Reduce { .. } => "A".to_string(),
            Action::ReduceTied { .. } => "R".to_string(),
            Action::GradNorm { .. } => "N".to_string(),
            Action::OptimStep { .. } => "S".to_string(),
            Action::AllGather { .. } => "G".to_string(),
            Action::UpdateTied { .. } => "U".to_string(),
            Action::Share { .. } => "P".to_string(),
            Action::Reshard { .. } => "L".to_string(),
        };
        if !one_stage_each {
            text.push_str(&format!("/{}", action.stage().0));
        }
        text
    };
    let width =
        timeline.workers.iter().flatten().map(|i| label(&i.action).len()).max().unwrap_or(1).max(2);
    let mut out = String::new();
    for (worker, list) in timeline.workers.iter().enumerate() {
        let mut cells = vec![".".to_string(); timeline.end() as usize];
        for interval in list {
            for (offset, time) in (interval.start..interval.end).enumerate() {
                cells[time as usize] =
                    if offset == 0 { label(&interval.action) } else { "<<".to_string() };
            }
        }
        let cells: Vec<_> = cells.iter().map(|cell| format!("{cell:<width$}")).collect();
        out.push_str(format!("worker {worker}  {}", cells.join(" ")).trim_end());
        out.push('\n');
    }
    out
}
