fn t(n:&str, t:String){ let s=std::time::Instant::now(); let e=layerspec::LayerGraph::from_yaml(&t,"f").map(|_|()).map_err(|e|e.to_string()); println!("{n} {:?} {:?}", s.elapsed(), e); }
fn main(){
 t("list", format!("inputs: {{x: [b, 2]}}\nlayers: [{}]", "ReLU, ".repeat(1_500_000)));
 t("keys", (0..600_000).map(|key| format!("key{key}: 1\n")).collect());
 t("name", format!("inputs: {{x: [b, 2]}}\nlayers: [{}]", "R".repeat(10_000_000)));
 t("key", format!("inputs: {{x: [b, 2]}}\nlayers:\n  - ReLU:\n    {}: 1\n", "k".repeat(900)));
 t("multiline", format!("inputs: {{x: [b, 2]}}\nlayers: [{}]", "R\n ".repeat(3_000_000)));
 t("colons", format!("inputs: {{x: [b, 2]}}\nlayers: [{}]", "a:".repeat(3_000_000)));
 t("comments", "#\n".repeat(5_000_000));
 t("vars", format!("vars: {{{}}}", (0..100000).map(|i| format!("v{i}: ${{1+1}}, ")).collect::<String>()));
 t("bigvars", format!("inputs: {{x: [b, 2]}}\nlayers: [{}]", "${".repeat(3_000_000)));
 t("bigvars2", format!("inputs: {{x: [b, 2]}}\nlayers: ['{}']", "${1}".repeat(3_000_000)));
}
