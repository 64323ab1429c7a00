//! The network interfaces that NCCL may use.

/// The loopback interface and no other whose name begins with it.
const LOOPBACK: &str = "=lo";
const INTERFACE: &str = "NCCL_SOCKET_IFNAME";
const NETWORK: &str = "NCCL_NET";

/// Makes NCCL connect over the loopback interface only, unless `NCCL_SOCKET_IFNAME` already names
/// interfaces. Returns whether it may connect to other machines.
///
/// NCCL's connections are neither encrypted nor authenticated, so only the owner of the machine can
/// declare a network trusted. Call it first in `main`: it sets environment variables, which no
/// other thread may read at that time.
pub fn restrict_to_loopback() -> bool {
    // Otherwise a call could block without a way to interrupt it, or NCCL could use an address of
    // another interface.
    std::env::set_var("NCCL_COMM_BLOCKING", "0");
    std::env::remove_var("NCCL_COMM_ID");
    // NCCL's service for RAS listens on a port, which no ticket protects.
    std::env::set_var("NCCL_RAS_ENABLE", "0");
    if std::env::var_os(INTERFACE).is_some_and(|named| !named.is_empty() && named != LOOPBACK) {
        return true;
    }
    std::env::set_var(INTERFACE, LOOPBACK);
    // InfiniBand and plug-ins have interfaces of their own.
    std::env::set_var(NETWORK, "Socket");
    false
}

/// An id that only processes with the same loopback interface share; empty if it cannot be found.
pub fn machine_id() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let network = std::fs::read_link("/proc/self/ns/net");
    match (boot, network) {
        (Ok(boot), Ok(network)) => format!("{} {}", boot.trim(), network.display()),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_on_the_machine_that_it_was_on() {
        assert_eq!(machine_id(), machine_id());
    }
}
