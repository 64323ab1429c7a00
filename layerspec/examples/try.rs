fn main() {
    for f in std::env::args().skip(1) {
        match layerspec::LayerGraph::from_file(&f) {
            Ok(g) => {
                println!("{}", g.table(&layerspec::Bindings::new()));
                for w in g.warnings() {
                    println!("{w}")
                }
            }
            Err(e) => println!("{e}"),
        }
    }
}
