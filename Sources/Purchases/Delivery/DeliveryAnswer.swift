/// What became of one send of an event, as the rules see it.
package struct DeliveryAnswer: Sendable, Equatable {
    package let result: EndpointHealth.Result
    /// The HTTP status; nil: no answer came that counts.
    package let status: Int?
    /// In words for people; nil: the event was taken.
    package let reason: String?
    /// How long the receiver asks to be left alone: it slows the endpoint, and the event that was refused. Nil: the
    /// receiver asks for nothing.
    package let retryAfter: Duration?

    /// The meaning of an answer: 2xx takes the event, 410 says that the endpoint is gone, every other status has not
    /// taken it. Only 429 and 503 may name a time.
    package init(status: Int, retryAfter: Duration?) {
        let result: EndpointHealth.Result =
            switch status {
            case 200..<300: .taken
            case 410: .gone
            default: .failed
            }
        self.init(
            result: result, status: status, reason: result == .taken ? nil : "status \(status)",
            retryAfter: status == 429 || status == 503 ? retryAfter : nil)
    }

    /// No answer came that counts.
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
}
