import AppStoreSimulator
import Crypto
import Foundation
import Service
import Settings

/// The file that MAKEGOOD_CONFIG names, as values that a test can change. It is written as JSON, which is YAML.
struct ConfigurationFile: Encodable, Sendable {
    struct App: Encodable, Sendable {
        struct Testers: Encodable, Sendable {
            var users: [String]
        }

        struct ServerAPI: Encodable, Sendable {
            var issuerId: String
            var keyId: String
            var privateKeyFile = "key.p8"
            var callsPerSecond = 10_000
            var productionUrl: String
            var sandboxUrl: String
        }

        struct VerifyReceipt: Encodable, Sendable {
            var sharedSecret: String
            var productionUrl: String
            var sandboxUrl: String
        }

        struct Product: Encodable, Sendable {
            struct Goods: Encodable, Sendable, Equatable {
                var item: String
                var amount: Int
            }

            var id: String
            var type = "consumable"
            var goods: [Goods]
            var provisional: Bool?
            var group: String?
            var level: Int?
        }

        struct AccountTokens: Encodable, Sendable {
            var derivedFrom: String
        }

        struct Notifications: Encodable, Sendable {
            var forwardTo: String
        }

        struct Sweeps: Encodable, Sendable {
            var customersEvery = "off"
            var refundsEvery = "off"
            var samplePerDay = 0
        }

        struct Endpoint: Encodable, Sendable {
            var name: String
            var url: String
            /// One secret, or two with a space between.
            var secret: String
            var concurrency: Int?
            var types: [String]?
            var allowPrivate = ["127.0.0.1"]
        }

        struct Provisional: Encodable, Sendable {
            var perUserPerDay: Int
            var perAppPerDay: Int
            var purchasesMin: Int
        }

        var id: String
        var mode: String?
        var bundleId: String
        var bundleIdAliases: [String]?
        var appAppleId: Int64
        var environments = ["Production", "Sandbox"]
        var testers = Testers(users: ["tester"])
        var grantFrom: String
        var confirmWithApple = "stale"
        var transfer: String?
        var shared: String?
        var sandboxPurchases: String?
        var provisional: Provisional?
        var rootCertificates = ["root.der"]
        /// The strategy that the tests of verifyReceipt rely on; nil: the default for the credentials.
        var legacyReceipts: [String]? = ["verifyReceipt"]
        var ocsp: String?
        var accountTokens: AccountTokens?
        var finishAtApple: String?
        /// True only where a test is about it: the other tests count the calls that purchases cost.
        var writeBackTokens: Bool? = false
        var notifications: Notifications?
        /// No rota, because the other tests count the calls that purchases cost.
        var sweeps = Sweeps()
        var serverApi: ServerAPI?
        var verifyReceipt: VerifyReceipt?
        var endpoints: [Endpoint]?
        var products: [Product]
    }

    struct Key: Encodable, Sendable {
        var name: String
        var keySha256: String
        var scopes: [String]
        var apps: [String]
        var rate: Rate?
    }

    struct Rate: Encodable, Sendable {
        var perSecond: Int
        var burst: Int
    }

    struct GatewayJWT: Encodable, Sendable {
        var issuer = "https://gateway.example.com"
        var audience = "makegood"
        var keys = ["gateway.pem"]
        var scopes = ["intake"]
        var apps = ["game"]
    }

    var apps: [App]
    var access: [Key]
    var gatewayJwt = GatewayJWT()
    var users: Users?

    struct Users: Encodable, Sendable {
        /// The key file, beside this one.
        var protect = "users.key"
        /// The content of the key file.
        static let key = String(repeating: "0123456789abcdef", count: 4)
    }

    static let coins = "com.example.game.coins6"
    static let gems = "com.example.game.gems30"
    static let pass = "com.example.game.pass"
    static let gold = "com.example.game.gold"
    static let sword = "com.example.game.sword"
    static let riddle = "com.example.puzzle.riddle"

    /// Keys of the tests. What a caller sends as `Authorization: Bearer`.
    enum Caller: String, CaseIterable, Sendable {
        /// The app's gateway: both apps, intake only.
        case gateway = "gateway-key-of-the-tests"
        /// As above, for one app.
        case game = "game-key-of-the-tests"
        /// A trusted backend that vouches for its users.
        case claimant = "claimant-key-of-the-tests"
        /// The app backend: reads the feed of events.
        case backend = "backend-key-of-the-tests"
        /// Customer support: reads the timelines of one app.
        case support = "support-key-of-the-tests"
        /// The account service: makes one account part of another.
        case accounts = "accounts-key-of-the-tests"

        fileprivate var key: Key {
            let hash = SHA256.hash(data: Data(rawValue.utf8)).map { String(format: "%02x", $0) }.joined()
            let (scopes, apps) =
                switch self {
                case .gateway: (["intake"], ["*"])
                case .game: (["intake"], ["game"])
                case .claimant: (["intake", "claim"], ["*"])
                case .backend: (["events"], ["*"])
                case .support: (["support"], ["game"])
                case .accounts: (["merge"], ["game"])
                }
            return Key(name: "\(self)", keySha256: hash, scopes: scopes, apps: apps)
        }
    }

    /// Two apps: `game`, and `puzzle` with a bundle id of its own.
    init(simulator: RunningSimulator) {
        let credentials = simulator.store.credentials
        let serverAPI = App.ServerAPI(
            issuerId: credentials.issuerId, keyId: credentials.keyId, productionUrl: "\(simulator.url)/production",
            sandboxUrl: "\(simulator.url)/sandbox")
        let verifyReceipt = App.VerifyReceipt(
            sharedSecret: credentials.sharedSecret, productionUrl: "\(simulator.url)/production/verifyReceipt",
            sandboxUrl: "\(simulator.url)/sandbox/verifyReceipt")
        let yesterday = Date.now.addingTimeInterval(-86_400).formatted(.iso8601)
        apps = [
            App(
                id: "game", bundleId: "com.example.game", appAppleId: 1_234_567_890, grantFrom: yesterday,
                serverApi: serverAPI, verifyReceipt: verifyReceipt,
                products: [
                    .init(id: Self.coins, goods: [.init(item: "coins", amount: 6000)]),
                    .init(id: Self.gems, goods: [.init(item: "gems", amount: 30)]),
                    .init(id: Self.pass, type: "autoRenewable", goods: [.init(item: "pass", amount: 1)]),
                    .init(id: Self.gold, type: "autoRenewable", goods: [.init(item: "gold pass", amount: 1)]),
                    .init(id: Self.sword, type: "nonConsumable", goods: [.init(item: "sword", amount: 1)]),
                ]),
            App(
                id: "puzzle", bundleId: "com.example.puzzle", appAppleId: 1_234_567_891, grantFrom: yesterday,
                serverApi: serverAPI, verifyReceipt: verifyReceipt,
                products: [.init(id: Self.riddle, goods: [.init(item: "riddles", amount: 3)])]),
        ]
        access = Caller.allCases.map(\.key)
    }

    func goods(of productID: String) -> [App.Product.Goods] {
        apps.flatMap(\.products).first { $0.id == productID }?.goods ?? []
    }
}
