import Encoding
import Foundation
import Purchases
import Testing

@testable import Settings

/// Goal: with protected users, an id is found by its bytes, and a stranger's text costs time in proportion to its size.
///
/// Method: the best time of three, over two doublings of the text: linear work takes 4 times as long, quadratic work 16
/// times.
@Suite(.timeLimit(.minutes(5))) struct UserKeysTextTests {
    private static let bytesMax = 160_000
    private static let factorMax = 10.0
    private static let user = "jose\u{301}"

    private let keys: UserKeys

    init() throws {
        keys = try #require(UserKeys(file: "0123456789abcdef0123456789abcdef"))
    }

    /// The places where a stranger's text may stand.
    enum Place: String, CaseIterable, Sendable {
        case value, element, name, nestedName, message

        fileprivate func json(_ text: String) -> String {
            switch self {
            case .value, .message: #"{"client":"\#(text)"}"#
            case .element: #"{"client":{"all":[1,"\#(text)"]}}"#
            case .name: #"{"\#(text)":1}"#
            case .nestedName: #"{"client":{"\#(text)":1}}"#
            }
        }
    }

    @Test("marks that combine with one character cost what letters cost", arguments: Place.allCases)
    func growth(_ place: Place) {
        // The marks are in an order that Unicode normalization has to sort.
        let small = time(place, "\u{301}\u{316}", bytes: Self.bytesMax / 4)
        let large = time(place, "\u{301}\u{316}", bytes: Self.bytesMax)
        let letters = time(place, "ab", bytes: Self.bytesMax)
        #expect(large / small < Self.factorMax, "\(small) grows to \(large)")
        #expect(large / letters < Self.factorMax, "letters take \(letters), marks \(large)")
    }

    @Test("an id is its bytes: in a message, as a value, as the item")
    func bytes() {
        let key = keys.key(of: Self.user, app: "game")
        let composed = "jos\u{e9}"
        let message = keys.protecting(
            message: "\(Self.user), \(composed), \(Self.user)\(Self.user)\u{301}", of: Self.user, app: "game")
        #expect(message.isSameText(as: "\(key), \(composed), \(key)\(key)\u{301}"))
        #expect(keys.protecting(message: "jos", of: Self.user, app: "game") == "jos")
        #expect(keys.protecting(message: "", of: Self.user, app: "game")?.isEmpty == true)
        let protected = keys.protecting(
            #"{"client":["\#(Self.user)","\#(composed)"]}"#, of: Self.user, app: "game")
        #expect(protected.isSameText(as: #"{"client":["\#(key)","\#(composed)"]}"#))
        for (item, stored) in [(Self.user, key), (composed, composed)] {
            let submission = Submission(
                appID: "game", userID: Self.user, proof: .receipt("x"), details: "{}",
                declared: Declaration(item: item))
            #expect(keys.protecting(submission).declared?.item.isSameText(as: stored) == true)
        }
    }

    // MARK: Tools

    private func time(_ place: Place, _ unit: String, bytes: Int) -> Duration {
        let text = String(repeating: unit, count: bytes / unit.utf8.count)
        let json = place.json(text)
        return (0..<3).map { _ in
            var (kept, sent) = (0, 0)
            let time = ContinuousClock().measure {
                if place == .message {
                    sent = text.utf8.count
                    kept = keys.protecting(message: text, of: Self.user, app: "game")?.utf8.count ?? 0
                } else {
                    sent = json.utf8.count
                    kept = keys.protecting(json, of: Self.user, app: "game").utf8.count
                }
            }
            #expect(kept == sent)
            return time
        }.min() ?? .zero
    }
}
