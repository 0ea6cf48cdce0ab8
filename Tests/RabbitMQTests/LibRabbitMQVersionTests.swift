import Testing

@testable import RabbitMQ

/// Goal: a librabbitmq below 0.11.0 stops the start and is named. Method: version numbers as amqp.h makes them, on both
/// sides of the limit, and the library that is loaded here.
@Suite struct LibRabbitMQVersionTests {
    @Test(
        arguments: [
            (0x00_0A_00_01, "0.10.0"), (0x00_08_00_01, "0.8.0"), (0x00_0A_FF_01, "0.10.255"),
            (0x00_0B_00_00, "0.11.0 (before release)"),
        ] as [(UInt32, String)])
    func tooOld(_ number: UInt32, _ name: String) throws {
        let error = try #require(throws: OldLibRabbitMQ.self) { try LibRabbitMQVersion(number: number).check() }
        #expect(error.description.hasPrefix("librabbitmq \(name) is too old"))
        #expect(error.description.contains("0.11.0 or newer"))
    }

    @Test(
        arguments: [
            (0x00_0B_00_01, "0.11.0"), (0x00_0B_01_00, "0.11.1 (before release)"), (0x00_0F_00_01, "0.15.0"),
            (0x01_00_00_01, "1.0.0"),
        ] as [(UInt32, String)])
    func newEnough(_ number: UInt32, _ name: String) throws {
        try LibRabbitMQVersion(number: number).check()
        #expect(LibRabbitMQVersion(number: number).description == name)
    }

    @Test func theLoadedOne() throws {
        try LibRabbitMQVersion.loaded.check()
        #expect(LibRabbitMQVersion.loaded.number >> 24 < 10)
    }
}
