import Foundation
import Synchronization
import Testing

/// Searches for what no log and no error may hold: payloads, keys, tokens, passwords of addresses, full user ids. It is
/// applied to every process's log and to every error that a `Client` saw.
enum LogSearch {
    enum Kind: String, CaseIterable {
        case signed = "a JWS or JWT"
        case base64 = "a long base64 text"
        case credential = "a service key or shared secret"
        case privateKey = "a private key"
        case bearer = "a bearer credential"
        case password = "a password in an address"
        case userID = "a full user id"
    }

    struct Hit: Equatable {
        let kind: Kind
        /// The line's number, from 1.
        let line: Int
    }

    /// A longer run of letters and digits than any id, hash or name has.
    private static let base64Min = 80
    /// The users in the posts and the credentials in the calls of every test of this run so far.
    private static let seen = Mutex<(users: Set<String>, credentials: Set<String>)>(([], []))

    /// Ids that are also ordinary words are left out: a log line may well say "quick".
    static func note(user: String?) {
        guard let user, user.contains(where: \.isNumber) else { return }
        seen.withLock { _ = $0.users.insert(user) }
    }

    /// Shorter credentials are left out: they are nonsense of a test ("wrong").
    static func note(credential: String?) {
        guard let credential, credential.utf8.count >= 16 else { return }
        seen.withLock { _ = $0.credentials.insert(credential) }
    }

    /// Records an issue for each hit. The issue never shows the text itself.
    static func examine(_ text: String, of place: String) {
        let (users, credentials) = seen.withLock { $0 }
        for hit in hits(in: text, users: users, credentials: credentials) {
            Issue.record("\(place), line \(hit.line): \(hit.kind.rawValue)")
        }
    }

    static func hits(in text: String, users: Set<String>, credentials: Set<String>) -> [Hit] {
        var hits: [Hit] = []
        for (index, line) in text.split(separator: "\n", omittingEmptySubsequences: false).enumerated() {
            for kind in Kind.allCases where holds(kind, String(line), users, credentials) {
                hits.append(Hit(kind: kind, line: index + 1))
            }
        }
        return hits
    }

    private static func holds(
        _ kind: Kind, _ line: String, _ users: Set<String>, _ credentials: Set<String>
    ) -> Bool {
        switch kind {
        case .signed:
            runs(of: line, and: "-_").contains { run in
                run.firstRange(of: "eyJ").map { run[$0.lowerBound...].utf8.count >= 12 } ?? false
            }
        case .base64: ["-_", "+/="].contains { runs(of: line, and: $0).contains(where: isBase64) }
        case .credential: credentials.contains { line.contains($0) }
        // The lines of a key are shorter than any run that counts as base64.
        case .privateKey: line.contains("PRIVATE KEY-----")
        case .bearer:
            // A credential has no spaces and begins no parameter: `Bearer realm="…"` is our own challenge.
            (" " + line.lowercased()).split(separator: "bearer ").dropFirst().contains { rest in
                (runs(of: String(rest), and: "-._~+/").first?.utf8.count ?? 0) >= 8
            }
        case .password:
            line.split(separator: "://").dropFirst().contains { rest in
                let authority = rest.prefix { $0 != "/" && $0 != " " && $0 != "\"" }
                guard let at = authority.lastIndex(of: "@") else { return false }
                return authority[..<at].contains(":")
            }
        case .userID: runs(of: line, and: "-_").contains { users.contains(String($0)) }
        }
    }

    /// Maximal runs of letters, digits and the characters of `more`. A user id must match a whole run: `u1` is not in
    /// `u12`.
    private static func runs(of line: String, and more: String) -> [Substring] {
        let more = Set(more.utf8)
        let runs = line.utf8.split { byte in
            switch byte {
            case UInt8(ascii: "A")...UInt8(ascii: "Z"), UInt8(ascii: "a")...UInt8(ascii: "z"),
                UInt8(ascii: "0")...UInt8(ascii: "9"):
                false
            default: !more.contains(byte)
            }
        }
        return runs.map { line[$0.startIndex..<$0.endIndex] }
    }

    /// Whether the run is long, and has letters of both cases and digits, as no path, hash or dashed name has.
    private static func isBase64(_ run: Substring) -> Bool {
        run.utf8.count >= base64Min && run.contains(where: \.isUppercase) && run.contains(where: \.isLowercase)
            && run.contains(where: \.isNumber)
    }
}
