//! Arithmetic with symbols: one form for equal formulas, and the same values as plain numbers.

use layerspec::{Bindings, Dim, OutOfRange};

fn symbol(name: &str) -> Dim {
    Dim::symbol(name)
}

#[test]
fn equal_formulas_have_one_form() {
    let (a, b) = (symbol("a"), symbol("b"));
    let left = a.plus(&b).unwrap().times(&a).unwrap();
    let right = a.times(&a).unwrap().plus(&b.times(&a).unwrap()).unwrap();
    assert_eq!(left, right);
    assert_eq!(a.plus(&b).unwrap(), b.plus(&a).unwrap());
    // (a - 1) // 2 + 1, as a convolution computes it, is (a + 1) // 2, as rounding up does.
    let convolution = a.plus_number(-1).unwrap().floor_div(2).unwrap().plus_number(1).unwrap();
    assert_eq!(convolution, a.plus_number(1).unwrap().floor_div(2).unwrap());
    // Two halvings are a quartering.
    let twice = a.floor_div(2).unwrap().floor_div(2).unwrap();
    assert_eq!(twice, a.floor_div(4).unwrap());
    assert_eq!(a.times_number(6).unwrap().floor_div(4).unwrap().to_string(), "a + (a//2)");
    assert_eq!(a.plus_number(3).unwrap().plus_number(-3).unwrap().as_symbol(), Some("a"));
    assert_eq!(a.times_number(0).unwrap(), Dim::Fixed(0));
}

#[test]
fn formulas_read_as_one_writes_them() {
    let (a, b) = (symbol("batch"), symbol("seq"));
    assert_eq!(a.times(&b).unwrap().times_number(512).unwrap().to_string(), "batch*seq*512");
    assert_eq!(b.times_number(2).unwrap().plus_number(1).unwrap().to_string(), "seq*2 + 1");
    assert_eq!(b.plus_number(-3).unwrap().to_string(), "seq - 3");
    assert_eq!(b.plus_number(5).unwrap().floor_div(2).unwrap().to_string(), "((seq + 1)//2) + 2");
    assert_eq!(Dim::Fixed(7).to_string(), "7");
}

#[test]
fn values_are_those_of_plain_arithmetic() {
    for a in 0..40u64 {
        let bindings = Bindings::new().with("a", a);
        for (add, divide) in [(0, 1), (1, 2), (7, 3), (4, 4), (9, 5)] {
            let once = symbol("a").plus_number(add).unwrap().floor_div(divide).unwrap();
            assert_eq!(
                once.eval(&bindings),
                Some((a + add as u64) / divide),
                "({a} + {add}) // {divide}"
            );
            let twice =
                once.times_number(3).unwrap().plus_number(add).unwrap().floor_div(divide).unwrap();
            let expected = ((a + add as u64) / divide * 3 + add as u64) / divide;
            assert_eq!(twice.eval(&bindings), Some(expected), "{twice} at {a}");
            assert_eq!(twice.bind(&bindings), Ok(Dim::Fixed(expected)));
        }
    }
    assert_eq!(symbol("a").eval(&Bindings::new()), None);
    assert_eq!(
        symbol("a").plus_number(-3).unwrap().eval(&Bindings::new().with("a", 2)),
        None,
        "below zero"
    );
}

#[test]
fn nothing_leaves_64_bits() {
    let huge = Dim::Fixed(u64::MAX);
    assert_eq!(huge.plus_number(1), Err(OutOfRange));
    assert_eq!(huge.times_number(2), Err(OutOfRange));
    assert_eq!(huge.plus(&symbol("a")), Err(OutOfRange));
    assert_eq!(Dim::Fixed(2).plus_number(-3), Err(OutOfRange));
    assert_eq!(symbol("a").floor_div(0), Err(OutOfRange));
    assert_eq!(Dim::Fixed(1).floor_div(0), Err(OutOfRange));
    assert_eq!(Dim::Fixed(1).exact_div(0), None);
    let large = symbol("a").times_number(1 << 62).unwrap();
    assert_eq!(large.times_number(2), Err(OutOfRange));
    assert_eq!(large.eval(&Bindings::new().with("a", 4)), None);
}
