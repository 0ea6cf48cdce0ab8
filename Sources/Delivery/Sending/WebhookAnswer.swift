import Encoding
import Foundation

/// What became of one webhook.
package enum WebhookAnswer: Sendable, Equatable {
    /// The endpoint answered with a status that is no redirect.
    ///
    /// - retryAfter: how long the endpoint asks to wait, at most ``retryAfterMax``; nil: it does not say.
    /// - body: the first ``bodyMax`` bytes.
    case status(Int, retryAfter: Duration?, body: [UInt8])
    /// No answer that counts came.
    case failed(reason: WebhookFailure)

    package static let bodyMax = 64 * 1024
    package static let retryAfterMax: Duration = .seconds(86_400)

    /// Whether the endpoint has taken the event.
    package var isTaken: Bool {
        if case .status(200..<300, _, _) = self { true } else { false }
    }

    /// Reads `Retry-After`: a number of seconds, or the date that servers of HTTP send (RFC 9110, 10.2.3 and 5.6.7). Nil
    /// for anything else, and for a time that has passed.
    static func retryAfter(_ header: String, now: Date) -> Duration? {
        let text = header.trimmingCharacters(in: .whitespaces)
        let wait: Double
        if !text.isEmpty, text.utf8.allSatisfy({ (0x30...0x39).contains($0) }) {
            // Digits alone are a number, however many they are.
            wait = Double(text) ?? .infinity
        } else if let date = date(text) {
            wait = date.timeIntervalSince(now)
        } else {
            return nil
        }
        return wait > 0 ? min(.seconds(min(wait, 1e6)), retryAfterMax) : nil
    }

    /// Reads `Sun, 06 Nov 1994 08:49:37 GMT`.
    private static func date(_ text: String) -> Date? {
        let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
        guard let match = text.wholeMatch(of: /[A-Z][a-z]{2}, (\d{2}) ([A-Z][a-z]{2}) (\d{4}) (\S{8}) GMT/),
            let month = months.firstIndex(of: String(match.2))
        else { return nil }
        return Date(rfc3339: "\(match.3)-\(month < 9 ? "0" : "")\(month + 1)-\(match.1)T\(match.4)Z")
    }
}

/// Why no answer of an endpoint counts: a word that stays the same, and a sentence for people.
package struct WebhookFailure: Error, Sendable, Equatable, CustomStringConvertible {
    package enum Word: String, Sendable, CaseIterable {
        /// An address of the host is not public, and `allowPrivate` does not list it. Nothing was sent.
        case refusedAddress = "refused_address"
        /// The host has no address, or no name server answered. Nothing was sent.
        case nameNotFound = "name_not_found"
        /// No connection could be made to any address of the host. Nothing was sent.
        case connect
        /// The certificate is not the host's, or there was no TLS. Nothing was sent.
        case tls
        /// No whole answer came within the endpoint's time limit.
        case timeout
        /// The endpoint closed the connection before its answer was whole.
        case reset
        /// The answer is no HTTP.
        case malformedAnswer = "malformed_answer"
        /// The answer leads to another address. Redirects are not followed.
        case redirect
        /// This process ended the send, or was told to stop. It says nothing about the endpoint.
        case stopped
    }

    package let word: Word
    /// One sentence without its full stop. It holds nothing that the endpoint sent but the number of a status.
    package let sentence: String

    package init(_ word: Word, _ sentence: String) {
        self.word = word
        self.sentence = sentence
    }

    package var description: String { "\(word.rawValue): \(sentence)" }
}
