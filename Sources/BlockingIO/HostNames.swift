import Glibc

/// Finds the addresses of host names, each on a thread of its own, so that a name server that is slow blocks nothing
/// else.
public enum HostNames {
    /// Why a name has no addresses.
    public enum Failure: Error, Equatable {
        /// The name server says that there is no such name, or that it has no address.
        case notFound
        /// No name server gave an answer: getaddrinfo(3) in its own words. Retryable.
        case unanswered(String)
    }

    /// The addresses of a name in the order in which they should be tried (RFC 6724), each once: 4 bytes of an IPv4
    /// address, 16 of an IPv6 address. Never empty.
    ///
    /// Takes as long as the resolver of the machine tries (resolv.conf(5)), also if the caller is cancelled.
    ///
    /// - Throws: why there are none.
    public static func addresses(of name: String) async throws(Failure) -> [[UInt8]] {
        let thread = TaskThread(name: "name-look-up")
        let look = Task<Result<[[UInt8]], Failure>, Never>(executorPreference: thread) { lookUp(name) }
        return try await look.value.get()
    }

    /// EAI_NODATA and EAI_ADDRFAMILY, which netdb.h shows to GNU programs alone.
    private static let (noData, noAddressOfFamily): (Int32, Int32) = (-5, -9)

    private static func lookUp(_ name: String) -> Result<[[UInt8]], Failure> {
        // Each address once, and not once for each kind of socket.
        var hints = unsafe addrinfo()
        unsafe hints.ai_socktype = Int32(SOCK_STREAM.rawValue)
        // No address of a family of which this machine has none.
        unsafe hints.ai_flags = AI_ADDRCONFIG
        var found: UnsafeMutablePointer<addrinfo>?
        let code = unsafe getaddrinfo(name, nil, &hints, &found)  // getaddrinfo(3) copies the name
        guard code == 0 else {
            guard ![EAI_NONAME, noData, noAddressOfFamily].contains(code) else { return .failure(.notFound) }
            return .failure(.unanswered(unsafe String(cString: gai_strerror(code))))
        }
        defer { unsafe freeaddrinfo(found) }
        var addresses: [[UInt8]] = []
        var next = unsafe found
        while let entry = unsafe next {
            if let address = unsafe bytes(of: entry.pointee), !addresses.contains(address) {
                addresses.append(address)
            }
            unsafe next = entry.pointee.ai_next
        }
        return addresses.isEmpty ? .failure(.notFound) : .success(addresses)
    }

    /// Nil for an address of another family.
    private static func bytes(of entry: addrinfo) -> [UInt8]? {
        guard let address = unsafe UnsafeRawPointer(entry.ai_addr) else { return nil }
        switch unsafe entry.ai_family {
        case AF_INET:
            let address = unsafe address.loadUnaligned(as: sockaddr_in.self).sin_addr
            return unsafe withUnsafeBytes(of: address) { unsafe Array($0) }
        case AF_INET6:
            let address = unsafe address.loadUnaligned(as: sockaddr_in6.self).sin6_addr
            return unsafe withUnsafeBytes(of: address) { unsafe Array($0) }
        default: return nil
        }
    }
}
