package limits

import (
	"fmt"

	"google.golang.org/protobuf/types/known/structpb"

	"gatehouse/ratelimit/internal/counter"
)

// The types in this file are the configuration tree that package rulefile reads and check.go checks. Positions in xDS
// resources are zero. Texts are as written, and defaults are not applied.

// Pos is a position in a file; Line 0 means no position.
type Pos struct{ Line, Column int32 }

// Document is the content of one file or xDS resource, which configures one domain.
type Document struct {
	File    string
	Domain  string
	Pos     Pos // position of the domain's name
	Failure FailureMode
	// FailurePos is the position of on_store_failure, which sets Failure.
	FailurePos Pos
	Entries    []Entry
	// Unreadable is set if reading found errors that would cause misleading further errors in check.
	Unreadable bool
}

// Entry is one item of a descriptors list in the configuration.
type Entry struct {
	Pos        Pos
	Key, Value string
	ValuePos   Pos
	Match      *Match     // what the entry matches instead of a value; nil if it matches a value
	Limit      *Limit     // the entry's rate_limit, or the first limit of List; nil without a limit
	List       *LimitList // the entry's rate_limits; nil if it has none
	Metadata   *structpb.Struct
	Children   []Entry

	Attributes
	PathAttributes
	switchPos [len(switches)]Pos

	// KeyUnreadable is set if the entry's key could not be read. The error has been reported.
	KeyUnreadable bool
	Index         int    // index in the list that has the entry, from 0
	File          string // the entry's file; the entries of a merged domain have several
}

// LimitList is a rate_limits list.
type LimitList struct {
	Pos   Pos
	Items []Limit
}

// Limit is a rate_limit, or an item of rate_limits.
type Limit struct {
	Pos           Pos
	Unit          string
	PerUnit       uint32
	Multiplier    uint32 // 0 if not given
	Unlimited     bool
	Name          string
	Replaces      []Replaced
	HasUnit       bool
	HasPerUnit    bool
	Unreadable    bool // a field was refused, so do not report missing fields as well
	UnitPos       Pos
	PerUnitPos    Pos
	MultiplierPos Pos
	NamePos       Pos
	Options       *LimitOptions // nil for most limits
}

// LimitOptions are the fields that few limits have. If a field is missing, its text is empty and its position zero.
type LimitOptions struct {
	HasAlgorithm bool
	Algorithm    string
	Burst        uint32 // 0 if not given
	HasCalendar  bool
	Calendar     string
	Shadow       bool // shadow_mode of an item of rate_limits
	HasShadow    bool
	AlgorithmPos Pos
	BurstPos     Pos
	CalendarPos  Pos
}

// noOptions has the default options. All limits without options of their own share it, so never write to it.
var noOptions LimitOptions

func (l *Limit) options() *LimitOptions {
	if l.Options == nil {
		return &noOptions
	}
	return l.Options
}

// algorithm returns the limit's algorithm; the default algorithm if it is missing or unknown.
func (o *LimitOptions) algorithm() counter.Algorithm {
	a, _ := counter.ParseAlgorithm(o.Algorithm)
	return a
}

// burst returns the size of the limit's token bucket.
func (l *Limit) burst() uint32 {
	if b := l.options().Burst; b != 0 {
		return b
	}
	return l.PerUnit
}

// limits returns how many limits the entry has.
func (e *Entry) limits() int {
	switch {
	case e.List != nil:
		return len(e.List.Items)
	case e.Limit != nil:
		return 1
	}
	return 0
}

// limit returns the limit with index i of the entry.
func (e *Entry) limit(i int) *Limit {
	if e.List != nil {
		return &e.List.Items[i]
	}
	return e.Limit
}

// Replaced is one item of a limit's replaces list: the name of rules that the limit replaces.
type Replaced struct {
	Name string
	Pos  Pos
}

// Label returns the part of a dotted path that stands for the entry.
func (e *Entry) Label() string { return Label(e.Index, e.Key, e.shown()) }

// Label returns the text that Entry.Label returns. It is for an entry that is not completely read yet.
func Label(index int, key, value string) string {
	switch {
	case key == "":
		return fmt.Sprintf("descriptors[%d]", index)
	case value == "":
		return OneLine(key)
	}
	return OneLine(key + "_" + value)
}
