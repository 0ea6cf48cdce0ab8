/// The answer of one of Apple's endpoints, before a fault changes it.
struct AppleAnswer: Sendable {
    var status: Int
    var body: [UInt8]
    var contentType = "application/json"
    /// Value of the `Retry-After` header.
    var retryAfter: String?
    /// verifyReceipt's `status`, or the API's `errorCode`.
    var code: Int?
    var transactionIds: [String] = []
    var receiptHash: String?

    /// An answer of verifyReceipt, which has HTTP status 200 whatever happened.
    static func receiptStatus(
        _ status: Int,
        ids: [String] = [],
        receiptHash: String? = nil,
        isRetryable: Bool? = nil,
        retryableKey: String = "is_retryable"
    ) -> AppleAnswer {
        let body = JSONWriter.object(capacity: 64) { json in
            json.field("status", status)
            if let isRetryable { json.field(retryableKey, isRetryable) }
        }
        return AppleAnswer(status: 200, body: body, code: status, transactionIds: ids, receiptHash: receiptHash)
    }

    /// A refusal as an error object. An error whose number nobody knows has no `errorCode`.
    static func refused(_ error: AppleError, ids: [String] = []) -> AppleAnswer {
        let body = JSONWriter.object(capacity: 128) { json in
            json.field("errorCode", ifPresent: error.code)
            json.field("errorMessage", error.message)
        }
        return AppleAnswer(status: error.status, body: body, code: error.code, transactionIds: ids)
    }

    /// An error object with a code of a fault script; the first three digits of the code are the HTTP status.
    static func apiError(_ code: Int, _ message: String) -> AppleAnswer {
        let body = JSONWriter.object(capacity: 128) { json in
            json.field("errorCode", code)
            json.field("errorMessage", message)
        }
        return AppleAnswer(status: code / 10_000, body: body, code: code)
    }

    /// 401 has no error object (AppleFacts 3.2).
    static func unauthorized(ids: [String]) -> AppleAnswer {
        AppleAnswer(status: 401, body: Array("Unauthenticated\n".utf8), contentType: "text/plain", transactionIds: ids)
    }

    /// The answer that a fault puts in this one's place; it stays an answer about the same transactions.
    func replaced(by fault: FaultRequest, of service: SimulatedService, now: Int64) -> AppleAnswer {
        var answer: AppleAnswer
        switch fault.kind {
        case .latency, .timeout, .reset, .foreignRoot:
            return self
        case .status:
            answer = AppleAnswer(
                status: fault.status ?? 500, body: Array((fault.body ?? "").utf8), contentType: "text/plain")
            if fault.body?.hasPrefix("{") == true { answer.contentType = "application/json" }
        case .error:
            let code = fault.errorCode ?? 5_000_000
            answer = .apiError(code, fault.errorMessage ?? "Simulated error \(code).")
        case .receiptStatus:
            answer = .receiptStatus(
                fault.status ?? 21005, isRetryable: fault.isRetryable,
                retryableKey: fault.retryableKey ?? "is_retryable")
        case .garbage:
            answer = AppleAnswer(status: 200, body: garbage(fault.form ?? .truncated))
            if fault.form == .html { answer.contentType = "text/html" }
        case .notFound:
            answer = .refused(service.notFound ?? .transactionIdNotFound)
        }
        answer.transactionIds = transactionIds
        answer.receiptHash = receiptHash
        answer.retryAfter = fault.retryAfter(now: now)
        return answer
    }

    private func garbage(_ form: FaultRequest.Form) -> [UInt8] {
        switch form {
        case .bytes:
            var random = SystemRandomNumberGenerator()
            // The first byte can begin neither JSON nor UTF-8.
            return [0xFF] + (0..<511).map { _ in UInt8.random(in: .min ... .max, using: &random) }
        case .truncated: return Array(body.prefix(max(1, body.count / 2)))
        case .html:
            return Array("<html><head><title>502 Bad Gateway</title></head><body>Bad Gateway</body></html>\n".utf8)
        case .empty: return []
        case .json: return Array("[]".utf8)
        }
    }
}
