import Purchases
import Testing

/// Goal: 2xx alone takes an event; 410 alone says that the endpoint is gone; only 429 and 503 may ask for time.
@Suite struct DeliveryAnswerTests {
    @Test("Every status has one meaning", arguments: -1...999)
    func statuses(status: Int) {
        let answer = DeliveryAnswer(status: status, retryAfter: .seconds(60))
        let expected: EndpointHealth.Result = status / 100 == 2 ? .taken : status == 410 ? .gone : .failed
        #expect(answer.result == expected)
        #expect(answer.status == status)
        #expect(answer.reason == (expected == .taken ? nil : "status \(status)"))
        #expect(answer.retryAfter == ([429, 503].contains(status) ? .seconds(60) : nil))
    }

    @Test("No answer is a failure with its reason")
    func none() {
        let answer = DeliveryAnswer.none("no answer within 15 s")
        #expect(answer.result == .failed && answer.status == nil && answer.retryAfter == nil)
        #expect(answer.reason == "no answer within 15 s")
    }
}
