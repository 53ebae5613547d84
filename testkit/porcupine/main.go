// Checks histories of transactions for strict serializability with porcupine, which searches for an
// order of the transactions. testkit/src/porcupine.rs writes the histories, and scripts/porcupine
// compiles this program.
//
// Standard input has a line for each transaction, and an empty line after each history. The last
// ones have the same beginning, after the end of all others, and read everything.
//
//	BEGUN ENDED OUTCOME OPERATION...
//
// OUTCOME is `committed`, `refused` or `unknown`. An operation is `append:LIST:NUMBER`,
// `read:LIST:NUMBER,NUMBER,...`, `write:REGISTER:NUMBER`, or `get:REGISTER:NUMBER`, where the number
// is empty if the register was never written. All numbers that a history appends or writes are
// different and greater than 0. Standard output has a line for each history: `ok`, `violation`, or
// `undecided` if the search has not ended after five minutes: its duration can grow exponentially
// with the number of transactions at the same time.
package main

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// The longest search for an order of one history.
const searchMax = 5 * time.Minute

// The largest number of lists, and of registers, of a history.
const objectsMax = 16

// A state is small, so that states are compared quickly: of a list it has the length and a hash of
// its numbers in their order.
type state struct {
	lengths   [objectsMax]uint32
	hashes    [objectsMax]uint64
	registers [objectsMax]uint64
}

type operation struct {
	kind   string
	object int
	// The number that is appended, written or read.
	number uint64
	// The numbers that are read of a list, and their hash.
	numbers []uint64
	hash    uint64
}

type transaction struct {
	begun, ended int64
	outcome      string
	operations   []operation
}

func extended(hash, number uint64) uint64 {
	hash ^= number + 0x9E3779B97F4A7C15
	hash *= 0xBF58476D1CE4E5B9
	return hash ^ hash>>29
}

// objects numbers the lists and registers of a history.
type objects map[string]int

func (known objects) number(kind, name string) int {
	key := kind + name
	if _, exists := known[key]; !exists {
		if len(known) == objectsMax {
			fail("a history has more than %d lists and registers", objectsMax)
		}
		known[key] = len(known)
	}
	return known[key]
}

func fail(format string, values ...any) {
	fmt.Fprintf(os.Stderr, "porcupine: "+format+"\n", values...)
	os.Exit(2)
}

func parsed(text string) uint64 {
	number, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		fail("not a number: %q", text)
	}
	return number
}

func parseOperation(text string, known objects) operation {
	fields := strings.Split(text, ":")
	if len(fields) != 3 {
		fail("not an operation: %q", text)
	}
	result := operation{kind: fields[0]}
	switch result.kind {
	case "append", "write":
		result.number = parsed(fields[2])
	case "get":
		if fields[2] != "" {
			result.number = parsed(fields[2])
		}
	case "read":
		for _, number := range strings.FieldsFunc(fields[2], func(c rune) bool { return c == ',' }) {
			result.numbers = append(result.numbers, parsed(number))
			result.hash = extended(result.hash, parsed(number))
		}
	default:
		fail("not an operation: %q", text)
	}
	object := "list "
	if result.kind == "write" || result.kind == "get" {
		object = "register "
	}
	result.object = known.number(object, fields[1])
	return result
}

func parseTransaction(line string, known objects) transaction {
	fields := strings.Fields(line)
	if len(fields) < 3 {
		fail("not a transaction: %q", line)
	}
	result := transaction{begun: int64(parsed(fields[0])), ended: int64(parsed(fields[1])), outcome: fields[2]}
	for _, field := range fields[3:] {
		result.operations = append(result.operations, parseOperation(field, known))
	}
	return result
}

// step performs a transaction, and returns whether its reads have found this state.
func step(before, input, _ any) (bool, any) {
	now := before.(state)
	for _, operation := range input.(transaction).operations {
		switch at := operation.object; operation.kind {
		case "append":
			now.lengths[at]++
			now.hashes[at] = extended(now.hashes[at], operation.number)
		case "write":
			now.registers[at] = operation.number
		case "get":
			if now.registers[at] != operation.number {
				return false, before
			}
		case "read":
			if int(now.lengths[at]) != len(operation.numbers) || now.hashes[at] != operation.hash {
				return false, before
			}
		}
	}
	return true, now
}

// firstRead returns for each number the earliest end of a committed transaction that has read it.
func firstRead(history []transaction) map[uint64]int64 {
	ends := map[uint64]int64{}
	for _, reader := range history {
		if reader.outcome != "committed" {
			continue
		}
		note := func(number uint64) {
			if end, exists := ends[number]; !exists || reader.ended < end {
				ends[number] = reader.ended
			}
		}
		for _, operation := range reader.operations {
			if operation.kind == "get" {
				note(operation.number)
			}
			for _, number := range operation.numbers {
				note(number)
			}
		}
	}
	return ends
}

// recorded returns the operations that porcupine orders. A transaction with an unknown result took
// effect before the end of the first one that has read a number of it, and before the last reads, or
// it changes no read.
func recorded(history []transaction) []porcupine.Operation {
	var operations []porcupine.Operation
	ends := firstRead(history)
	last := history[len(history)-1].begun
	for client, transaction := range history {
		switch transaction.outcome {
		case "refused":
			continue
		case "unknown":
			transaction.ended = math.MaxInt64
			for _, operation := range transaction.operations {
				isChange := operation.kind == "append" || operation.kind == "write"
				if end, exists := ends[operation.number]; isChange && exists && end < transaction.ended {
					transaction.ended = end
				}
			}
			if transaction.ended == math.MaxInt64 {
				continue
			}
			if transaction.ended >= last {
				transaction.ended = last - 1
			}
			if transaction.ended < transaction.begun {
				// It was read before it began.
				transaction.ended = transaction.begun
			}
		}
		operations = append(operations, porcupine.Operation{
			ClientId: client, Input: transaction, Call: transaction.begun, Return: transaction.ended,
		})
	}
	return operations
}

// byObject divides a history whose transactions concern one object each.
func byObject(history []porcupine.Operation) [][]porcupine.Operation {
	parts := map[int][]porcupine.Operation{}
	for _, operation := range history {
		accesses := operation.Input.(transaction).operations
		for _, access := range accesses {
			if access.object != accesses[0].object {
				return [][]porcupine.Operation{history}
			}
		}
		if len(accesses) > 0 {
			parts[accesses[0].object] = append(parts[accesses[0].object], operation)
		}
	}
	divided := [][]porcupine.Operation{}
	for _, part := range parts {
		divided = append(divided, part)
	}
	return divided
}

func main() {
	model := porcupine.Model{
		Partition: byObject,
		Init:      func() any { return state{} },
		Step:      step,
	}
	input, output := bufio.NewReader(os.Stdin), bufio.NewWriter(os.Stdout)
	defer output.Flush()
	var history []transaction
	known := objects{}
	for {
		line, err := input.ReadString('\n')
		if err == io.EOF && line == "" && len(history) == 0 {
			return
		}
		if err != nil {
			fail("a history has no end: %v", err)
		}
		if line = strings.TrimSpace(line); line != "" {
			history = append(history, parseTransaction(line, known))
			continue
		}
		if len(history) == 0 {
			fail("a history has no transactions")
		}
		result := "undecided"
		switch porcupine.CheckOperationsTimeout(model, recorded(history), searchMax) {
		case porcupine.Ok:
			result = "ok"
		case porcupine.Illegal:
			result = "violation"
		}
		fmt.Fprintln(output, result)
		history, known = nil, objects{}
	}
}
