import Encoding
package import Foundation

/// What became of one send of an event, as the rules see it.
package struct DeliveryAnswer: Sendable, Equatable {
    /// The longest wait that a receiver may ask for.
    package static let retryAfterMax: Duration = .seconds(86_400)

    package let result: EndpointHealth.Result
    /// The HTTP status; nil: no answer came.
    package let status: Int?
    /// In words for people; nil: the event was taken.
    package let reason: String?
    /// How long the receiver asks to be left alone: it slows the endpoint, and the event that was refused. Nil: the
    /// receiver asks for nothing.
    package let retryAfter: Duration?

    /// The meaning of an answer: 2xx takes the event, 410 says that the endpoint is gone, every other status has not
    /// taken it. No redirect is followed. 429 and 503 may name a time.
    ///
    /// - Parameter retryAfter: the header `Retry-After`.
    package init(status: Int, retryAfter: String?, now: Date) {
        let result: EndpointHealth.Result =
            switch status {
            case 200..<300: .taken
            case 410: .gone
            default: .failed
            }
        let isPace = status == 429 || status == 503
        self.init(
            result: result, status: status, reason: result == .taken ? nil : Self.words(status),
            retryAfter: isPace ? retryAfter.flatMap { Self.wait($0, now: now) } : nil)
    }

    /// No answer came.
    ///
    /// - Parameter reason: why, in words for people.
    package static func none(_ reason: String) -> DeliveryAnswer {
        DeliveryAnswer(result: .failed, status: nil, reason: reason, retryAfter: nil)
    }

    private init(result: EndpointHealth.Result, status: Int?, reason: String?, retryAfter: Duration?) {
        self.result = result
        self.status = status
        self.reason = reason
        self.retryAfter = retryAfter
    }

    private static func words(_ status: Int) -> String {
        (300..<400).contains(status) ? "status \(status): redirects are not followed" : "status \(status)"
    }

    /// Seconds, or an HTTP date in the form that RFC 9110 has senders write. Nil: neither, or already over.
    private static func wait(_ header: String, now: Date) -> Duration? {
        let text = header.trimmingCharacters(in: .whitespaces)
        let seconds: Double?
        if !text.isEmpty, text.utf8.allSatisfy({ (UInt8(ascii: "0")...UInt8(ascii: "9")).contains($0) }) {
            seconds = Double(text)
        } else {
            seconds = Self.date(text)?.timeIntervalSince(now)
        }
        guard let seconds, seconds > 0 else { return nil }
        return .milliseconds(Int((min(seconds, retryAfterMax.inSeconds) * 1000).rounded(.up)))
    }

    /// `Sun, 06 Nov 1994 08:49:37 GMT`; nil for any other form.
    private static func date(_ text: String) -> Date? {
        let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
        let words = text.split(separator: " ", omittingEmptySubsequences: false)
        guard words.count == 6, words[0].count == 4, words[5] == "GMT",
            let month = months.firstIndex(where: { $0 == words[2] })
        else { return nil }
        return Date(rfc3339: "\(words[3])-\(month < 9 ? "0" : "")\(month + 1)-\(words[1])T\(words[4])Z")
    }
}
