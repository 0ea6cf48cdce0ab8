import Testing

@testable import RabbitMQ

@Suite struct BrokerConfigurationTests {
    struct Good: CustomTestStringConvertible {
        let url: String
        var user = "guest"
        var password = "guest"
        var host = "localhost"
        var port = 5672
        var vhost = "/"
        var testDescription: String { url }
    }

    @Test(arguments: [
        Good(url: "amqp://localhost"),
        Good(url: "amqp://localhost/"),
        Good(url: "amqp://localhost/%2f"),
        Good(url: "amqp://localhost/%2F"),
        Good(url: "amqp://a:b@h:1/v", user: "a", password: "b", host: "h", port: 1, vhost: "v"),
        Good(url: "amqp://a@h", user: "a", host: "h"),
        Good(url: "amqp://a:@h", user: "a", password: "", host: "h"),
        Good(url: "amqp://a:b:c@h", user: "a", password: "b:c", host: "h"),
        Good(url: "amqp://a%40b:p%2F%3A%3f%23%25@h:65535", user: "a@b", password: "p/:?#%", host: "h", port: 65535),
        Good(url: "amqp://us%C3%A9r:p%C3%A4ss@h/v%C3%B6", user: "usér", password: "päss", host: "h", vhost: "vö"),
        Good(url: "amqp://a@h:5673/one%2Ftwo", user: "a", host: "h", port: 5673, vhost: "one/two"),
        Good(url: "amqp://[::1]:5673", host: "::1", port: 5673),
        Good(url: "amqp://u:p@[fe80::1]", user: "u", password: "p", host: "fe80::1"),
        Good(url: "amqp://127.0.0.1", host: "127.0.0.1"),
        Good(url: "amqp://a@h?", user: "a", host: "h"),
    ])
    func understands(_ good: Good) throws {
        let configuration = try BrokerConfiguration(url: good.url)
        #expect(configuration.user == good.user)
        #expect(configuration.password == good.password)
        #expect(configuration.nodes == [.init(host: good.host, port: good.port)])
        #expect(configuration.vhost == good.vhost)
        #expect(configuration.tls == nil)
    }

    @Test(arguments: [
        ("", "scheme"), ("localhost", "scheme"), ("http://h", "scheme"), ("AMQP://h", "scheme"),
        ("amqp://a,,b", "host"), ("amqp://a,", "host"), ("amqp://a:1,b:0", "port"), ("amqp://a,b:2:3", "port"),
        ("amqp://" + String(repeating: "h,", count: 8) + "h", "host"),
        ("amqp://", "host"), ("amqp://:5672", "host"), ("amqp://u:p@", "host"), ("amqp://[::1", "host"),
        ("amqp://[::1]x", "host"), ("amqp://[h]", "host"), ("amqp://%zz", "host"),
        ("amqp://h:", "port"), ("amqp://h:0", "port"), ("amqp://h:65536", "port"), ("amqp://h:-1", "port"),
        ("amqp://h:+1", "port"), ("amqp://h:56x", "port"), ("amqp://h:1:2", "port"),
        ("amqp://h:99999999999999999999", "port"),
        ("amqp://h/a/b", "vhost"), ("amqp://h/%", "vhost"), ("amqp://h/%00", "vhost"), ("amqp://h/%ff", "vhost"),
        ("amqp://h/" + String(repeating: "v", count: 256), "vhost"),
        ("amqp://:p@h", "user"), ("amqp://u%00:p@h", "user"), ("amqp://u:p%0@h", "password"),
        ("amqp://u:p@x@h", "password"),
        ("amqp://h", "user"), ("amqp://localhost,h", "user"), ("amqp://127.0.0.1.example.com", "user"),
        ("amqps://h/v?cacertfile=a", "user"),
        ("amqp://h#x", "fragment"), ("amqp://h?heartbeat=1", "query"), ("amqp://h?verify=verify_none", "verify"),
        ("amqps://h", "cacertfile"), ("amqps://h?verify=no&cacertfile=a", "verify"),
        ("amqps://h?cacertfile=", "cacertfile"), ("amqps://h?cacertfile=a&cacertfile=b", "cacertfile"),
        ("amqps://h?cacertfile=a&certfile=c", "keyfile"), ("amqps://h?cacertfile=a&keyfile=k", "certfile"),
        ("amqp://h/" + String(repeating: "v", count: 5000), "url"),
    ])
    func refuses(_ url: String, field: String) {
        #expect(throws: RabbitMQError.badURL(field: field)) { try BrokerConfiguration(url: url) }
    }

    @Test func understandsSeveralNodes() throws {
        let plain = try BrokerConfiguration(url: "amqp://u:a,b@one,two:5673,[::1]:1,f%2Cour/v")
        #expect(plain.password == "a,b")
        #expect(
            plain.nodes == [
                .init(host: "one", port: 5672), .init(host: "two", port: 5673), .init(host: "::1", port: 1),
                .init(host: "f,our", port: 5672),
            ])
        #expect("\(plain)" == "amqp://one:5672,two:5673,::1:1,f,our:5672/v")
        let secure = try BrokerConfiguration(url: "amqps://u@one,two:1/?cacertfile=a")
        #expect(secure.nodes.map(\.port) == [5671, 1])
    }

    @Test func understandsTLS() throws {
        let verified = try BrokerConfiguration(
            url: "amqps://u:p@broker.example/v?cacertfile=%2Fetc%2Fca.pem&certfile=c.pem&keyfile=k.pem")
        #expect(verified.nodes.map(\.port) == [5671])
        #expect(
            verified.tls
                == .init(
                    authoritiesFile: "/etc/ca.pem", verifiesPeer: true, certificateFile: "c.pem", keyFile: "k.pem"))
        let unverified = try BrokerConfiguration(url: "amqps://u@h?verify=verify_none")
        #expect(unverified.tls == .init(authoritiesFile: nil, verifiesPeer: false, certificateFile: nil, keyFile: nil))
    }

    @Test func neverShowsThePassword() throws {
        let configuration = try BrokerConfiguration(url: "amqp://user:s3cret@h:1/v")
        var dumped = ""
        dump(configuration, to: &dumped)
        for text in ["\(configuration)", String(reflecting: configuration), dumped] {
            #expect(!text.contains("s3cret"))
        }
        #expect("\(configuration)" == "amqp://h:1/v")
    }

    @Test func aQueueIsDeclaredWithExplicitArguments() {
        let plain = QueueDeclaration(name: "q")
        #expect(plain.arguments.map(\.key) == ["x-queue-type", "x-overflow"])
        let full = QueueDeclaration(
            name: "q", deliveryLimit: 20, deadLetterExchange: "", deadLetterRoutingKey: "dead",
            deadLetterStrategyAtLeastOnce: true, messageTTL: .milliseconds(2500), maxLength: 1000)
        let arguments = Dictionary(uniqueKeysWithValues: full.arguments.map { ($0.key, $0.value) })
        #expect(
            arguments == [
                "x-queue-type": .text("quorum"), "x-overflow": .text("reject-publish"), "x-delivery-limit": .number(20),
                "x-dead-letter-exchange": .text(""), "x-dead-letter-routing-key": .text("dead"),
                "x-dead-letter-strategy": .text("at-least-once"), "x-message-ttl": .number(2500),
                "x-max-length": .number(1000),
            ])
    }

    @Test func attemptsAreFarEnoughApartAndNeverTooFar() {
        var outage = Outage()
        let start = ContinuousClock.now
        expect(outage.failed(.lost, at: start), is: true)
        #expect(outage.delay(random: 0) == .milliseconds(200))
        #expect(outage.delay(random: 1) == .milliseconds(400))
        expect(outage.failed(.unreachable, at: start), is: false)
        expect(outage.failed(.accessRefused, at: start), is: true)
        expect(outage.failed(.accessRefused, at: start), is: false)
        expect(outage.failed(.unreachable, at: start), is: false)
        expect(outage.failed(.topology(queue: "q"), at: start), is: true)
        for _ in 0..<1000 { _ = outage.failed(.unreachable, at: start) }
        #expect(outage.delay(random: 1) == .seconds(5))
        #expect(outage.delay(random: 0.5) == .milliseconds(2600))
        expect(outage.ended(at: start + .seconds(9)), is: .seconds(9))
        expect(outage.ended(at: start), is: nil)
    }
}
