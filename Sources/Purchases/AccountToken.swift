import Crypto
package import Foundation

/// What is known of an `appAccountToken` by its bits alone.
package enum AccountToken {
    /// Whether a library wrote the token where it had none (F10): all bits are 0, all bits are 1, or all digits but
    /// those for version and variant are the same. Purchases of many users carry such a token, so it names nobody.
    package static func isNone(_ token: UUID) -> Bool {
        withUnsafeBytes(of: token.uuid) { bytes in
            let digit = bytes[0] & 0x0F
            return bytes.indices.allSatisfy { index in
                // The high digits of these two bytes are the version and the variant (RFC 9562, 4.1 and 4.2).
                (index == 6 || index == 8 || bytes[index] >> 4 == digit) && bytes[index] & 0x0F == digit
            }
        }
    }

    /// How a client library derives a user's token from the user's name (F11, `accountTokens.derivedFrom`).
    ///
    /// Nobody finds a name for a given token, or a second name for a token that is taken: the digests are 122 bits or
    /// longer, and what is known against MD5 and SHA-1 are collisions of two texts that one person chooses.
    package struct Derivation: Sendable, Equatable {
        package enum Algorithm: String, Sendable, CaseIterable {
            /// The 16 bytes of the MD5, as they are.
            case md5
            /// The first 16 bytes of the SHA-1, as they are.
            case sha1
            /// UUIDv3 (RFC 9562, 5.3): MD5 of the namespace and the name.
            case uuid3
            /// UUIDv5 (RFC 9562, 5.5): SHA-1 of the namespace and the name.
            case uuid5
        }

        package var algorithm: Algorithm
        /// Stands before the name in the digest. Nil: nothing stands before the name.
        package var namespace: UUID?

        package init(_ algorithm: Algorithm, namespace: UUID? = nil) {
            self.algorithm = algorithm
            self.namespace = namespace
        }

        package func token(of name: String) -> UUID {
            let text = (namespace.map { withUnsafeBytes(of: $0.uuid, Array.init) } ?? []) + Array(name.utf8)
            var bytes =
                switch algorithm {
                case .md5, .uuid3: Array(Insecure.MD5.hash(data: text))
                case .sha1, .uuid5: Array(Insecure.SHA1.hash(data: text).prefix(16))
                }
            let version: UInt8? =
                switch algorithm {
                case .md5, .sha1: nil
                case .uuid3: 0x30
                case .uuid5: 0x50
                }
            if let version {
                bytes[6] = bytes[6] & 0x0F | version
                bytes[8] = bytes[8] & 0x3F | 0x80
            }
            return bytes.withUnsafeBytes { UUID(uuid: $0.loadUnaligned(as: uuid_t.self)) }
        }

        /// The derivations that libraries are known to use. The namespaces are those of RFC 9562, 6.6: DNS, URL, OID
        /// and X.500.
        package static let known: [Derivation] =
            Algorithm.allCases.map { Derivation($0) }
            + ([0x10, 0x11, 0x12, 0x14] as [UInt8]).flatMap { last -> [Derivation] in
                let namespace = UUID(
                    uuid: (
                        0x6B, 0xA7, 0xB8, last, 0x9D, 0xAD, 0x11, 0xD1, 0x80, 0xB4, 0x00, 0xC0, 0x4F, 0xD4, 0x30, 0xC8
                    ))
                return [Derivation(.uuid3, namespace: namespace), Derivation(.uuid5, namespace: namespace)]
            }
    }
}
