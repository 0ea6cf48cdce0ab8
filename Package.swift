// swift-tools-version: 6.2
import PackageDescription

// Which target may import which is written here, and the compiler enforces it. A target knows only those before it, in this
// order: Encoding, Caching; BlockingIO; Postgres, RabbitMQ, AppStore, Purchases; Settings; Service, Ledger; WorkQueue,
// AppleGateway, Delivery; Support, MovingIn; Intake, Reconciliation; Commands; makegood. Postgres, RabbitMQ and AppStore do
// not know each other. Purchases has no input and no output. PurchaseClient is for apps: it uses no other target, and no
// other target uses it. AppStoreSimulator, FaultProxy, Adversary and makegood-lab are for tests, and makegood contains the
// first of them alone. `deploy/check rooms` holds the folders inside a target.
// What one target shows another is `package`; what PurchaseClient shows apps is `public`. In Postgres, BlockingIO,
// Encoding and Caching it is `public` too: a release build compiles generic code for its callers' types, and short
// functions into their callers, only where it is public (-cross-module-optimization).

let common: [SwiftSetting] = [
    .enableUpcomingFeature("ExistentialAny"),
    .enableUpcomingFeature("InternalImportsByDefault"),
    .enableUpcomingFeature("MemberImportVisibility"),
    .enableUpcomingFeature("NonisolatedNonsendingByDefault"),
]
/// The targets that touch C: every use of an unsafe construct is spelled out.
let unsafeC: [SwiftSetting] = common + [.strictMemorySafety()]

let hummingbird = Target.Dependency.product(name: "Hummingbird", package: "hummingbird")
let hummingbirdCore = Target.Dependency.product(name: "HummingbirdCore", package: "hummingbird")
let httpClient = Target.Dependency.product(name: "AsyncHTTPClient", package: "async-http-client")
let jwtKit = Target.Dependency.product(name: "JWTKit", package: "jwt-kit")
let x509 = Target.Dependency.product(name: "X509", package: "swift-certificates")
let asn1 = Target.Dependency.product(name: "SwiftASN1", package: "swift-asn1")
let cryptoExtras = Target.Dependency.product(name: "CryptoExtras", package: "swift-crypto")
let crypto = Target.Dependency.product(name: "Crypto", package: "swift-crypto")
let argumentParser = Target.Dependency.product(name: "ArgumentParser", package: "swift-argument-parser")
let lifecycle = Target.Dependency.product(name: "ServiceLifecycle", package: "swift-service-lifecycle")
let unixSignals = Target.Dependency.product(name: "UnixSignals", package: "swift-service-lifecycle")
let metrics = Target.Dependency.product(name: "Metrics", package: "swift-metrics")
let metricsTestKit = Target.Dependency.product(name: "MetricsTestKit", package: "swift-metrics")
let coreMetrics = Target.Dependency.product(name: "CoreMetrics", package: "swift-metrics")
let log = Target.Dependency.product(name: "Logging", package: "swift-log")
let deque = Target.Dependency.product(name: "DequeModule", package: "swift-collections")
let histogram = Target.Dependency.product(name: "Histogram", package: "hdrhistogram-swift")
let yams = Target.Dependency.product(name: "Yams", package: "Yams")
let nioCore = Target.Dependency.product(name: "NIOCore", package: "swift-nio")
let nioPosix = Target.Dependency.product(name: "NIOPosix", package: "swift-nio")
let nioHTTP1 = Target.Dependency.product(name: "NIOHTTP1", package: "swift-nio")
let nioSSL = Target.Dependency.product(name: "NIOSSL", package: "swift-nio-ssl")
let nioHTTPTypes = Target.Dependency.product(name: "NIOHTTPTypes", package: "swift-nio-extras")
let httpTypes = Target.Dependency.product(name: "HTTPTypes", package: "swift-http-types")

let package = Package(
    name: "makegood",
    platforms: [.macOS(.v26)],
    products: [
        .executable(name: "makegood", targets: ["makegood"]),
        .executable(name: "makegood-lab", targets: ["makegood-lab"]),
        .library(name: "PurchaseClient", targets: ["PurchaseClient"]),
    ],
    dependencies: [
        // Exact, because Package.resolved is not committed: everyone builds the same set.
        .package(url: "https://github.com/hummingbird-project/hummingbird", exact: "2.28.1"),
        .package(url: "https://github.com/swift-server/async-http-client", exact: "1.37.0"),
        .package(url: "https://github.com/vapor/jwt-kit", exact: "5.7.1"),
        .package(url: "https://github.com/apple/swift-certificates", exact: "1.21.1"),
        .package(url: "https://github.com/apple/swift-asn1", exact: "1.7.4"),
        .package(url: "https://github.com/apple/swift-crypto", exact: "4.5.2"),
        .package(url: "https://github.com/apple/swift-argument-parser", exact: "1.8.2"),
        .package(url: "https://github.com/swift-server/swift-service-lifecycle", exact: "2.13.0"),
        .package(url: "https://github.com/apple/swift-metrics", exact: "2.13.0"),
        .package(url: "https://github.com/apple/swift-log", exact: "1.16.2"),
        .package(url: "https://github.com/apple/swift-collections", exact: "1.6.0"),
        .package(url: "https://github.com/HdrHistogram/hdrhistogram-swift", exact: "0.2.0"),
        .package(url: "https://github.com/jpsim/Yams", exact: "6.2.2"),
        .package(url: "https://github.com/apple/swift-nio", exact: "2.101.2"),
        .package(url: "https://github.com/apple/swift-nio-ssl", exact: "2.37.6"),
        .package(url: "https://github.com/apple/swift-nio-extras", exact: "1.35.2"),
        .package(url: "https://github.com/apple/swift-http-types", exact: "1.8.0"),
    ],
    targets: [
        .systemLibrary(name: "CLibPQ", pkgConfig: "libpq", providers: [.apt(["libpq-dev"]), .brew(["libpq"])]),
        .systemLibrary(
            name: "CRabbitMQ", pkgConfig: "librabbitmq", providers: [.apt(["librabbitmq-dev"]), .brew(["rabbitmq-c"])]),
        .systemLibrary(name: "CZlib", pkgConfig: "zlib", providers: [.apt(["zlib1g-dev"]), .brew(["zlib"])]),
        .target(name: "BlockingIO", swiftSettings: unsafeC),
        .target(
            name: "Postgres", dependencies: ["BlockingIO", "CLibPQ", log, metrics, deque],
            swiftSettings: unsafeC),
        .target(
            name: "RabbitMQ", dependencies: ["BlockingIO", "CRabbitMQ", log, metrics, deque], swiftSettings: unsafeC),
        .target(name: "Encoding", swiftSettings: common),
        .target(name: "Caching", swiftSettings: common),
        .target(name: "PurchaseClient", swiftSettings: common),
        .target(
            name: "AppStore",
            dependencies: [
                "Encoding", httpClient, jwtKit, x509, asn1, crypto, cryptoExtras, log, metrics, nioCore, nioHTTP1,
                nioSSL,
            ],
            swiftSettings: common),
        .target(name: "Purchases", dependencies: ["Encoding", crypto], swiftSettings: common),
        .target(
            name: "Settings", dependencies: ["Encoding", "Purchases", "AppStore", crypto, yams, log],
            swiftSettings: common),
        .target(
            name: "Service",
            dependencies: [
                "Caching", "Encoding", "Purchases", "Settings", "CZlib", hummingbird, hummingbirdCore, httpTypes,
                crypto,
                lifecycle, log, metrics, coreMetrics, deque, nioCore, nioHTTP1, nioHTTPTypes,
            ],
            swiftSettings: unsafeC),
        .target(
            name: "Ledger",
            dependencies: [
                "Caching", "Encoding", "Purchases", "Settings", "AppStore", "Postgres", crypto, lifecycle, log,
            ],
            resources: [.embedInCode("Migrations")],
            swiftSettings: common),
        .target(name: "WorkQueue", dependencies: ["Purchases", "Service", "RabbitMQ"], swiftSettings: common),
        .target(
            name: "AppleGateway",
            dependencies: [
                "Encoding", "Purchases", "Settings", "Service", "Ledger", "AppStore", httpClient, crypto, lifecycle,
                log,
                metrics, deque,
            ],
            swiftSettings: common),
        .target(
            name: "Delivery",
            dependencies: [
                "BlockingIO", "Encoding", "Purchases", "Settings", "Service", "Ledger", "WorkQueue", "Postgres",
                "RabbitMQ", httpClient, crypto, lifecycle, log, metrics, nioCore, nioHTTP1, nioSSL,
            ],
            swiftSettings: common),
        .target(
            name: "Support",
            dependencies: [
                "Encoding", "Purchases", "Settings", "Ledger", "WorkQueue", "Postgres", "RabbitMQ", log,
            ],
            swiftSettings: common),
        .target(
            name: "MovingIn",
            dependencies: ["Encoding", "Purchases", "Settings", "Ledger", "Postgres", crypto],
            swiftSettings: common),
        .target(
            name: "Intake",
            dependencies: [
                "Caching", "Encoding", "Purchases", "Settings", "Service", "Ledger", "WorkQueue", "Support", "AppStore",
                "Postgres", hummingbird, httpTypes, jwtKit, crypto, lifecycle, log, metrics, nioCore,
            ],
            swiftSettings: common),
        .target(
            name: "Reconciliation",
            dependencies: [
                "Encoding", "Purchases", "Settings", "Service", "Ledger", "WorkQueue", "AppleGateway", "AppStore",
                "Postgres", "RabbitMQ", httpClient, nioCore, nioHTTP1, lifecycle, unixSignals, log, metrics, deque,
            ],
            swiftSettings: common),
        .target(
            name: "AppStoreSimulator",
            dependencies: [
                hummingbird, httpClient, x509, asn1, crypto, cryptoExtras, log, lifecycle, nioCore, nioPosix, nioHTTP1,
                nioSSL, httpTypes,
            ],
            exclude: ["Guide.md"],
            swiftSettings: common),
        .systemLibrary(name: "CEpoll"),
        .target(name: "FaultProxy", dependencies: ["CEpoll"], swiftSettings: common),
        .target(
            name: "Adversary",
            dependencies: [
                "FaultProxy", "AppStoreSimulator", "Encoding", "Purchases", "AppStore", "Settings", "Service", "Ledger",
                "WorkQueue", "Delivery", "Support", "Intake", "Postgres", "RabbitMQ", httpClient, histogram, x509,
                crypto, cryptoExtras, log, lifecycle, nioCore, nioPosix, nioHTTP1,
            ],
            swiftSettings: common),
        .target(
            name: "Commands",
            dependencies: [
                "Settings", "Service", "Ledger", "WorkQueue", "Support", "Purchases", "Postgres", "RabbitMQ",
                argumentParser, log,
            ],
            swiftSettings: common),
        .executableTarget(
            name: "makegood-lab",
            dependencies: [
                "Commands", "Adversary", "Encoding", "Purchases", "Settings", "Ledger", "AppleGateway", "Delivery",
                "AppStore", "Postgres", argumentParser, httpClient, nioCore, nioHTTP1, log,
            ],
            swiftSettings: common),
        .executableTarget(
            name: "makegood",
            dependencies: [
                "Commands", "Reconciliation", "Intake", "Support", "MovingIn", "AppleGateway", "Delivery", "WorkQueue",
                "Ledger", "Service", "Settings", "AppStoreSimulator", "AppStore", "Purchases", "Encoding", "Postgres",
                "RabbitMQ", argumentParser, crypto, httpClient, hummingbird, histogram, httpTypes, lifecycle,
                unixSignals,
                nioCore, nioPosix, nioHTTP1, nioSSL, log,
            ],
            swiftSettings: common),

        .target(
            name: "TestServers", dependencies: ["Postgres", "RabbitMQ", "CRabbitMQ", lifecycle, log],
            path: "Tests/TestServers",
            swiftSettings: common),
        .target(name: "TestRandom", path: "Tests/TestRandom", swiftSettings: common),
        .target(
            name: "TestSchemas", dependencies: ["Purchases", "Encoding"], path: "Tests/TestSchemas",
            swiftSettings: common),
        .testTarget(name: "BlockingIOTests", dependencies: ["BlockingIO"], swiftSettings: common),
        .testTarget(
            name: "PostgresTests", dependencies: ["Postgres", "FaultProxy", "TestServers", "TestRandom", log],
            swiftSettings: common),
        .testTarget(
            name: "RabbitMQTests",
            dependencies: ["RabbitMQ", "FaultProxy", "TestServers", "TestRandom", log, metrics, metricsTestKit],
            swiftSettings: common),
        .testTarget(
            name: "AppStoreTests",
            dependencies: [
                "AppStore", "Encoding", "TestRandom", "TestServers", hummingbird, httpClient, jwtKit, x509, asn1,
                crypto,
                cryptoExtras, nioCore, nioSSL, httpTypes, log,
            ],
            swiftSettings: common),
        .testTarget(
            name: "AppStoreSimulatorTests",
            dependencies: [
                "AppStoreSimulator", "AppStore", "TestServers", hummingbird, httpClient, x509, asn1, crypto, lifecycle,
                log, nioCore, nioHTTP1, httpTypes,
            ],
            swiftSettings: common),
        .testTarget(
            name: "PurchasesTests", dependencies: ["Purchases", "Encoding", "TestRandom", "TestSchemas", crypto],
            swiftSettings: common),
        .testTarget(
            name: "PurchaseClientTests", dependencies: ["PurchaseClient", "TestRandom"], swiftSettings: common),
        .testTarget(
            name: "ReconciliationTests",
            dependencies: [
                "Reconciliation", "Adversary", "Intake", "Support", "MovingIn", "AppleGateway", "Delivery", "WorkQueue",
                "Ledger",
                "Service", "Settings", "Purchases", "AppStore", "Encoding", "Caching", "Postgres", "RabbitMQ",
                "AppStoreSimulator", "TestServers", "TestRandom", "TestSchemas", hummingbird, httpClient, jwtKit,
                crypto, cryptoExtras, lifecycle, log, metrics, nioCore, nioHTTP1, nioPosix, nioSSL, httpTypes, yams,
            ],
            swiftSettings: common),
        .testTarget(
            name: "CommandTests",
            dependencies: [
                "makegood", "makegood-lab", "Commands", "AppStore", "Ledger", "WorkQueue", "Settings", "Purchases",
                "Adversary", "Encoding",
                "AppStoreSimulator", "Postgres", "RabbitMQ", "TestRandom", "TestServers", hummingbird, httpClient,
                crypto, log,
                nioCore, nioHTTP1, nioPosix, nioSSL, httpTypes,
            ],
            swiftSettings: common),
        .testTarget(
            name: "EndToEndTests",
            dependencies: [
                "makegood", "Adversary", "FaultProxy", "AppStoreSimulator", "Support", "AppleGateway", "Delivery",
                "WorkQueue",
                "Ledger", "Service", "Settings", "Purchases", "Encoding", "Postgres", "RabbitMQ", "TestRandom",
                "TestSchemas", "TestServers", httpClient, crypto, log, nioCore, nioHTTP1,
            ],
            swiftSettings: common),
    ]
)
