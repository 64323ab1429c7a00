//! The output size of a sliding window: the arithmetic of convolutions and pools.

use crate::Dim;

/// A window that slides along one dimension. All numbers are 1 or more, but for `padding`.
#[derive(Copy, Clone)]
pub(super) struct Window {
    pub(super) kernel: u64,
    pub(super) stride: u64,
    /// Places added at each end.
    pub(super) padding: u64,
    /// Distance between the window's own places.
    pub(super) dilation: u64,
    /// Whether a last window may reach over the end.
    pub(super) ceil_mode: bool,
}

impl Window {
    /// The distance from the first to the last element of the window, both included.
    pub(super) fn effective_kernel_size(&self) -> Option<u64> {
        self.kernel.checked_sub(1)?.checked_mul(self.dilation)?.checked_add(1)
    }

    /// The number of windows along a dimension of `size`.
    pub(super) fn output_size(&self, size: &Dim) -> Result<Dim, String> {
        let too_large = || String::from("kernel, stride, padding or dilation is out of range");
        let reach = self
            .effective_kernel_size()
            .and_then(|reach| i64::try_from(reach).ok())
            .ok_or_else(too_large)?;
        let padding = i64::try_from(self.padding).map_err(|_| too_large())?;
        let stride = i64::try_from(self.stride).map_err(|_| too_large())?;
        let slack = padding
            .checked_mul(2)
            .and_then(|both| both.checked_sub(reach))
            .ok_or_else(too_large)?;
        let over_the_end = if self.ceil_mode { stride - 1 } else { 0 };
        if let Dim::Fixed(fixed) = size {
            if fixed.checked_add_signed(slack.saturating_add(over_the_end)).is_none() {
                return Err(format!(
                    "the kernel reaches over {reach}, but the input has only {fixed} with padding \
                     {padding} at each end"
                ));
            }
        }
        if !self.ceil_mode {
            return Ok(size.plus_number(slack)?.floor_div(self.stride)?.plus_number(1)?);
        }
        // The last window may reach over the end, but has to start before the end padding.
        // Rounding up gives a start too late exactly if the reach less the padding is below the
        // stride; then the starts are the multiples of the stride below size + padding.
        let starts_before_padding = reach - padding >= stride;
        let first_past =
            if starts_before_padding { slack.checked_add(stride) } else { Some(padding) };
        let span =
            first_past.and_then(|span| span.checked_add(stride - 1)).ok_or_else(too_large)?;
        Ok(size.plus_number(span)?.floor_div(self.stride)?)
    }
}
