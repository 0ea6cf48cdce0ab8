import Foundation
import Glibc

/// The calls of sys/socket.h that a proxy needs. Every descriptor is non-blocking and closed on exec.
enum Sockets {
    /// How many clients may wait to be accepted; the kernel's maximum. When a process comes back, all of its clients
    /// come at once.
    private static let backlog: Int32 = 4096

    /// Listens on a free port of loopback.
    static func listen() -> (descriptor: Int32, port: Int)? {
        let listener = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_addr.s_addr = in_addr_t(0x7f00_0001).bigEndian
        var length = socklen_t(MemoryLayout<sockaddr_in>.size)
        let isBound = withUnsafeMutablePointer(to: &address) { pointer in
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { address in
                bind(listener, address, length) == 0 && Glibc.listen(listener, backlog) == 0
                    && getsockname(listener, address, &length) == 0
            }
        }
        guard isBound else {
            Glibc.close(listener)
            return nil
        }
        prepare(listener)
        return (listener, Int(UInt16(bigEndian: address.sin_port)))
    }

    static func prepare(_ descriptor: Int32) {
        _ = fcntl(descriptor, F_SETFD, FD_CLOEXEC)
        _ = fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK)
        var on: Int32 = 1
        // A descriptor that is no TCP connection refuses this option, which does no harm.
        setsockopt(descriptor, Int32(IPPROTO_TCP), TCP_NODELAY, &on, socklen_t(MemoryLayout<Int32>.size))
    }

    static func close(_ descriptor: Int32, reset: Bool) {
        if reset {
            // A linger time of zero: RST instead of FIN (socket(7)).
            var option = linger(l_onoff: 1, l_linger: 0)
            setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &option, socklen_t(MemoryLayout<linger>.size))
        }
        Glibc.close(descriptor)
    }

    /// Empties a pipe.
    static func drain(_ descriptor: Int32) {
        var bytes = [UInt8](repeating: 0, count: 256)
        while read(descriptor, &bytes, bytes.count) > 0 {}
    }
}

/// The server behind the proxy.
struct Target: Sendable {
    private let family: Int32
    private let address: [UInt8]

    /// Prefers IPv4 if the name has both: the private servers listen on 127.0.0.1.
    init?(_ url: String) {
        guard let parts = URLComponents(string: url), let host = parts.host, !host.isEmpty, let port = parts.port else {
            return nil
        }
        var hints = addrinfo()
        hints.ai_socktype = Int32(SOCK_STREAM.rawValue)
        var found: UnsafeMutablePointer<addrinfo>?
        guard getaddrinfo(host, String(port), &hints, &found) == 0 else { return nil }
        defer { freeaddrinfo(found) }
        var best: (family: Int32, address: [UInt8])?
        var next = found
        while let info = next?.pointee {
            let address = Array(UnsafeRawBufferPointer(start: info.ai_addr, count: Int(info.ai_addrlen)))
            if best == nil || (best?.family != AF_INET && info.ai_family == AF_INET) {
                best = (info.ai_family, address)
            }
            next = info.ai_next
        }
        guard let best else { return nil }
        (family, address) = best
    }

    /// Begins a connection; the first read or write shows whether it succeeds. Nil: refused at once.
    func connect() -> Int32? {
        let server = socket(family, Int32(SOCK_STREAM.rawValue), 0)
        guard server >= 0 else { return nil }
        Sockets.prepare(server)
        let status = address.withUnsafeBytes { bytes in
            bytes.withMemoryRebound(to: sockaddr.self) {
                Glibc.connect(server, $0.baseAddress, socklen_t(address.count))
            }
        }
        if status == 0 || errno == EINPROGRESS { return server }
        Glibc.close(server)
        return nil
    }
}
