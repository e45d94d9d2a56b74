//! Prints the configuration, warnings and tensors of a model: `describe MODEL`.

use std::time::Instant;

use ls_model::ModelFile;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: describe MODEL")?;
    let start = Instant::now();
    let model = ModelFile::open(path)?;
    let opened = start.elapsed();
    println!("{:#?}", model.config());
    for info in model.tensors() {
        let (offset, n_bytes) = (info.offset(), info.n_bytes);
        println!("{:<34} {:<5} {offset:>12} {n_bytes:>11} {:?}", info.name, info.dtype, info.shape);
    }
    for warning in model.warnings() {
        println!("warning: {warning}");
    }
    let (size, weights) = (model.size_bytes(), model.weights_bytes());
    println!("{size} bytes, {weights} of them weights; opened in {opened:?}");
    Ok(())
}
