import TestRandom
import Testing

@testable import RabbitMQ

@Suite struct AcknowledgementWindowTests {
    @Test func aRunFromTheStartIsOneCommand() throws {
        var window = AcknowledgementWindow()
        for tag in 1...100 { try window.delivered(UInt64(tag)) }
        for tag in (1...100).shuffled() { window.acknowledge(UInt64(tag)) }
        expect(window.takeCommands(), is: [.acknowledge(100, multiple: true)])
        expect(window.takeCommands(), is: [])
        #expect(window.open == 0)
    }

    @Test func gapsAreAcknowledgedOneByOne() throws {
        var window = AcknowledgementWindow()
        for tag in 1...5 { try window.delivered(UInt64(tag)) }
        window.acknowledge(1)
        window.acknowledge(4)
        expect(window.takeCommands(), is: [.acknowledge(1, multiple: false), .acknowledge(4, multiple: false)])
        window.acknowledge(2)
        window.acknowledge(3)
        expect(window.takeCommands(), is: [.acknowledge(3, multiple: true)])
    }

    @Test func rejectionsGoBeforeTheAckThatWouldCoverThem() throws {
        var window = AcknowledgementWindow()
        for tag in 1...3 { try window.delivered(UInt64(tag)) }
        window.acknowledge(1)
        window.acknowledge(3)
        window.reject(2)
        expect(window.takeCommands(), is: [.reject(2), .acknowledge(3, multiple: true)])
    }

    @Test func nothingIsSettledTwice() throws {
        var window = AcknowledgementWindow()
        try window.delivered(1)
        expect(window.acknowledge(1), is: true)
        expect(window.acknowledge(1), is: false)
        expect(window.reject(1), is: false)
        expect(window.acknowledge(2), is: false)
        expect(window.acknowledge(0), is: false)
        _ = window.takeCommands()
        expect(window.acknowledge(1), is: false)
        expect(window.takeCommands(), is: [])
        #expect(throws: RabbitMQError.protocolViolation) { try window.delivered(1) }
        #expect(throws: RabbitMQError.protocolViolation) { try window.delivered(3) }
    }

    /// Goal: the broker follows the commands by its own rules, reaches exactly our decisions, and never gets a tag that
    /// it does not know. Method: 2,000 random sequences against a model of the broker's unsettled set.
    @Test func theBrokerUnderstandsEverySequence() throws {
        var random = SeededRandom(announcing: "acknowledgement window")
        let seed = random.seed
        for _ in 0..<2_000 {
            var window = AcknowledgementWindow()
            var unsettled: Set<UInt64> = []
            var acknowledged: Set<UInt64> = []
            var rejected: Set<UInt64> = []
            var wantedAcknowledged: Set<UInt64> = []
            var wantedRejected: Set<UInt64> = []
            var last: UInt64 = 0
            func obey(_ commands: [AcknowledgementWindow.Command]) {
                for command in commands {
                    switch command {
                    case .reject(let tag):
                        #expect(unsettled.remove(tag) != nil, "seed \(seed)")
                        rejected.insert(tag)
                    case .acknowledge(let tag, let multiple):
                        #expect(unsettled.contains(tag), "seed \(seed)")
                        let covered = multiple ? unsettled.filter { $0 <= tag } : [tag]
                        acknowledged.formUnion(covered)
                        unsettled.subtract(covered)
                    }
                }
            }
            for _ in 0..<80 {
                switch Int.random(in: 0..<8, using: &random) {
                case 0..<3:
                    last += 1
                    try window.delivered(last)
                    unsettled.insert(last)
                case 3..<6:
                    let tag = UInt64.random(in: 0...last + 1, using: &random)
                    if window.acknowledge(tag) { wantedAcknowledged.insert(tag) }
                case 6:
                    let tag = UInt64.random(in: 0...last + 1, using: &random)
                    if window.reject(tag) { wantedRejected.insert(tag) }
                default: obey(window.takeCommands())
                }
            }
            obey(window.takeCommands())
            #expect(acknowledged == wantedAcknowledged, "seed \(seed)")
            #expect(rejected == wantedRejected, "seed \(seed)")
            #expect(unsettled.count == window.open, "seed \(seed)")
        }
    }
}
