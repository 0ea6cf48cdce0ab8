import AppStoreSimulator
import Foundation
import NIOHTTP1
import Testing

/// Goal: the endpoints of retention messaging take and refuse what Apple documents.
/// Method: real HTTP.
@Suite struct MessagingTests {
    @Test func `images, messages and defaults depend on each other`() async throws {
        try await RunningSimulator.with { store in
            let (image, message) = (UUID().uuidString.lowercased(), UUID().uuidString.lowercased())
            let png = "\u{89}PNG"
            func call(_ method: HTTPMethod, _ path: String, _ json: String? = nil) async throws -> String {
                try await store.api(method, "v1/messaging/\(path)", json: json).refusal
            }
            #expect(try await call(.PUT, "image/\(image)", png) == "400 4000161")
            #expect(try await call(.PUT, "image/x", png) == "400 4000000")
            #expect(try await call(.DELETE, "image/\(image)") == "404 4040014")
            let shown = #""image":{"imageIdentifier":"\#(image)","altText":"a"}"#
            #expect(
                try await call(.PUT, "message/\(message)", #"{"header":"h","body":"b",\#(shown)}"#) == "404 4040014")
            #expect(try await call(.PUT, "message/\(message)", #"{"header":"h","body":"b"}"#) == "200 -")
            #expect(try await call(.PUT, "message/\(message)", #"{"header":"h","body":"b"}"#) == "409 4090001")
            for (body, refusal) in [
                (#"{"header":"h"}"#, "400 4000000"),
                (#"{"header":"\#(String(repeating: "h", count: 67))","body":"b"}"#, "400 4000162"),
                (#"{"header":"h","body":"\#(String(repeating: "b", count: 145))"}"#, "400 4000163"),
                (#"{"header":"h","body":"b","headerPosition":"ABOVE_IMAGE"}"#, "400 4000224"),
                (#"{"header":"h","body":"b","bulletPoints":[1,2,3,4,5,6]}"#, "400 4000218"),
            ] {
                #expect(try await call(.PUT, "message/\(UUID().uuidString)", body) == refusal, "\(body)")
            }
            let chosen = #"{"messageIdentifier":"\#(message)"}"#
            #expect(try await call(.GET, "default/vip/en-US") == "404 4040020")
            #expect(try await call(.PUT, "default/vip/x", chosen) == "400 4000164")
            #expect(try await call(.PUT, "default/vip/en-US", chosen) == "200 -")
            #expect(try await call(.DELETE, "message/\(message)") == "200 -")
            #expect(try await call(.GET, "default/vip/en-US") == "404 4040020")
            #expect(try await call(.PUT, "realtime/url", #"{"realtimeURL":"http://x"}"#) == "400 4000215")
            #expect(try await call(.GET, "realtime/url") == "404 4040021")
            #expect(try await call(.POST, "performanceTest", #"{"originalTransactionId":"1"}"#) == "400 4000211")
            let unknown = try await call(.GET, "performanceTest/result/\(UUID().uuidString.lowercased())")
            #expect(unknown == "404 4040018")
            let bare = try await store.call(.GET, "/production/inApps/v1/messaging/image/list")
            #expect(bare.status == 401)
        }
    }
}
