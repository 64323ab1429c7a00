//! The decimals of Parquet, which databases export, as numbers.

use ::parquet::data_type::Decimal;

/// Returns the nearest number.
pub(super) fn number(decimal: &Decimal) -> Result<f64, String> {
    let text = format!("{}e{}", unscaled(decimal)?, -i64::from(decimal.scale()));
    text.parse().map_err(|_| format!("expected a decimal, found {text}"))
}

/// Returns a decimal as text: a whole number exactly, such as a large id.
pub(super) fn text(decimal: &Decimal) -> Result<String, String> {
    match decimal.scale() {
        0 => Ok(unscaled(decimal)?.to_string()),
        _ => Ok(number(decimal)?.to_string()),
    }
}

/// The whole number before its division by a power of ten: big-endian bytes in two's complement.
fn unscaled(decimal: &Decimal) -> Result<i128, String> {
    let data = decimal.data();
    let negative = data.first().is_some_and(|first| first & 0x80 != 0);
    let mut bytes = [if negative { 0xff } else { 0 }; 16];
    let start = bytes.len().checked_sub(data.len());
    let place = start.and_then(|start| bytes.get_mut(start..));
    place
        .ok_or_else(|| format!("a decimal of {} bytes; at most 16 can be read", data.len()))?
        .copy_from_slice(data);
    Ok(i128::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_the_nearest_numbers() {
        assert_eq!(number(&Decimal::from_i32(110, 5, 2)), Ok(1.1));
        assert_eq!(number(&Decimal::from_i64(-5, 5, 3)), Ok(-0.005));
        assert_eq!(number(&Decimal::from_i32(7, 5, -2)), Ok(700.0));
        let of_bytes = |bytes: &[u8], scale| Decimal::from_bytes(bytes.to_vec().into(), 38, scale);
        assert_eq!(number(&of_bytes(&[0xff, 0x85], 1)), Ok(-12.3));
        assert_eq!(number(&of_bytes(&[0x80; 16], 0)).unwrap().signum(), -1.0);
        assert_eq!(number(&of_bytes(&[], 0)), Ok(0.0));
        let error = number(&of_bytes(&[1; 17], 0)).unwrap_err();
        assert_eq!(error, "a decimal of 17 bytes; at most 16 can be read");
        assert_eq!(number(&Decimal::from_i32(1, 5, i32::MIN)), Ok(f64::INFINITY));
        // No float holds this id.
        let id = 9_007_199_254_740_993;
        assert_eq!(text(&Decimal::from_i64(id, 18, 0)).unwrap(), id.to_string());
        assert_eq!(text(&Decimal::from_i32(150, 5, 2)).unwrap(), "1.5");
    }
}
