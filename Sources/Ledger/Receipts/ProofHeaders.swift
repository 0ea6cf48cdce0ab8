import Crypto
package import Purchases
import Synchronization

/// Which headers of signed transactions are stored once for all the proofs that begin with them.
///
/// The header of a JWS holds Apple's certificates: four fifths of a proof, and the same in every purchase for a year or
/// longer. What anybody may post is not shared for the asking: a header must have come several times, and each further
/// one more often than the one before, so that forgeries cannot fill a table of which nothing is ever deleted, nor take
/// the place of the headers that purchases have. All other proofs are stored whole.
package final class ProofHeaders: Sendable {
    package struct Header: Sendable, Hashable {
        /// The first part of the JWS, with the dot that follows it.
        package let text: String
        package let sha256: [UInt8]

        /// The digest stands for the text, which every row of a batch would have hashed again.
        package static func == (one: Header, other: Header) -> Bool { one.sha256 == other.sha256 }
        package func hash(into hasher: inout Hasher) { hasher.combine(sha256) }
    }

    /// How often a header comes before it is shared, while a process shares few: Apple has one or two at a time.
    static let sightingsMin = 4
    static let few = 4
    /// Headers that are looked for; the one that came least lately makes room.
    static let sharedMax = 16
    /// Bytes of a header that is worth it, and of one that is still read: Apple's have about 3,000.
    static let bytes = 256...16_384
    /// Headers that have not come often enough yet; beyond, all counts are halved.
    private static let candidatesMax = 256

    private struct State {
        /// The latest first.
        var shared: [Header] = []
        /// In this process's life: each further one must have come so much more often.
        var sharedEver = 0
        var candidates: [String: Int] = [:]
    }

    private let state = Mutex(State())

    package init() {}

    /// What is stored of a proof: its own part, and the header it shares, if it shares one. Together they are the
    /// payload, verbatim.
    package func split(_ proof: Proof) -> (body: String, header: Header?) {
        guard case .signedTransaction(let payload) = proof, let header = header(of: payload) else {
            return (proof.payload, nil)
        }
        return (String(decoding: payload.utf8.dropFirst(header.text.utf8.count), as: UTF8.self), header)
    }

    private func header(of payload: String) -> Header? {
        state.withLock { state in
            // Both are ASCII, as intake has made sure: this compares bytes.
            if let index = state.shared.firstIndex(where: { payload.hasPrefix($0.text) }) {
                if index > 0 { state.shared.insert(state.shared.remove(at: index), at: 0) }
                return state.shared[0]
            }
            guard
                let dot = payload.utf8.prefix(Self.bytes.upperBound).firstIndex(of: UInt8(ascii: ".")),
                Self.bytes.contains(payload.utf8.distance(from: payload.startIndex, to: dot))
            else { return nil }
            let text = String(payload[...dot])
            let sightings = state.candidates[text, default: 0] + 1
            guard sightings >= Self.sightingsMin * max(1, state.sharedEver - Self.few + 1) else {
                if state.candidates.count >= Self.candidatesMax {
                    state.candidates = state.candidates.mapValues { $0 / 2 }.filter { $0.value > 0 }
                }
                state.candidates[text] = sightings
                return nil
            }
            state.candidates[text] = nil
            state.sharedEver += 1
            if state.shared.count >= Self.sharedMax { state.shared.removeLast() }
            let header = Header(text: text, sha256: Array(SHA256.hash(data: Array(text.utf8))))
            state.shared.insert(header, at: 0)
            return header
        }
    }
}
