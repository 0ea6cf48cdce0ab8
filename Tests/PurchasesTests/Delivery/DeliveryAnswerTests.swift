import Foundation
import Purchases
import Testing

/// Goal: 2xx alone takes an event; 410 alone says that the endpoint is gone; Retry-After is read in both of its forms.
@Suite struct DeliveryAnswerTests {
    /// Sun, 06 Nov 1994 08:49:37 GMT
    private static let now = Date(timeIntervalSince1970: 784_111_777)

    @Test("Every status has one meaning", arguments: -1...999)
    func statuses(status: Int) {
        let answer = DeliveryAnswer(status: status, retryAfter: nil, now: Self.now)
        let expected: EndpointHealth.Result = status / 100 == 2 ? .taken : status == 410 ? .gone : .failed
        #expect(answer.result == expected)
        #expect(answer.status == status && answer.retryAfter == nil)
        #expect((answer.reason == nil) == (expected == .taken))
        #expect(answer.reason?.contains("\(status)") != false)
        #expect((answer.reason?.contains("redirect") == true) == (status / 100 == 3))
    }

    @Test("No answer is a failure with its reason")
    func none() {
        let answer = DeliveryAnswer.none("no answer within 15 s")
        #expect(answer.result == .failed && answer.status == nil && answer.retryAfter == nil)
        #expect(answer.reason == "no answer within 15 s")
    }

    @Test(
        "Retry-After: seconds or a date, at most a day",
        arguments: [
            ("1", 1.0), ("120", 120), (" 120 ", 120), ("0120", 120), ("86400", 86_400), ("86401", 86_400),
            ("99999999999999999999999999", 86_400), ("Sun, 06 Nov 1994 08:50:37 GMT", 60),
            ("Mon, 07 Nov 1994 08:49:37 GMT", 86_400), ("Fri, 31 Dec 1999 23:59:59 GMT", 86_400),
            ("Sun, 06 Nov 1994 08:49:38 GMT", 1),
        ])
    func retryAfter(header: String, seconds: Double) {
        for status in [429, 503] {
            let answer = DeliveryAnswer(status: status, retryAfter: header, now: Self.now)
            #expect(answer.retryAfter?.inSeconds == seconds, "\(status)")
            #expect(answer.result == .failed)
        }
    }

    @Test(
        "What is neither, or over, asks for nothing",
        arguments: [
            "", " ", "0", "-1", "+1", "1.5", "1e3", "0x10", "soon", "١", "120 s", "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:36 GMT", "Sun, 06 Nov 1994 08:50:37 UTC", "Sun, 06 Now 1994 08:50:37 GMT",
            "06 Nov 1994 08:50:37 GMT", "Sun, 36 Nov 1994 08:50:37 GMT", "Sun, 06 Nov 1994 08:50:37  GMT",
            "1994-11-06T08:50:37Z", "Sun, 06 Nov 1994 08:50 GMT", "inf", "nan",
        ])
    func noRetryAfter(header: String) {
        #expect(DeliveryAnswer(status: 503, retryAfter: header, now: Self.now).retryAfter == nil)
    }

    @Test("Only 429 and 503 name a time", arguments: [200, 302, 400, 404, 408, 410, 500, 502, 504])
    func others(status: Int) {
        #expect(DeliveryAnswer(status: status, retryAfter: "60", now: Self.now).retryAfter == nil)
    }
}
