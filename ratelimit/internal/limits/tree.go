package limits

import (
	"fmt"

	"google.golang.org/protobuf/types/known/structpb"

	"gatehouse/ratelimit/internal/counter"
)

// The tree that package rulefile reads and check.go checks. Positions in xDS resources are zero. Texts are as written,
// and defaults are not applied.

// Pos is a place in a file; line 0 means none.
type Pos struct{ Line, Column int32 }

// Document is one file or resource: one domain.
type Document struct {
	File    string
	Domain  string
	Pos     Pos // of the domain's name
	Failure FailureMode
	// FailurePos is the position of on_store_failure.
	FailurePos Pos
	Entries    []Entry
	// Unreadable is set when reading found errors that would cause further errors.
	Unreadable bool
}

// Entry is one descriptor of the configuration.
type Entry struct {
	Pos        Pos
	Key, Value string
	ValuePos   Pos
	Match      *Match     // instead of a value; nil for none
	Limit      *Limit     // the first of List, if there is a List
	List       *LimitList // rate_limits; nil without
	Metadata   *structpb.Struct
	Children   []Entry

	Attributes
	PathAttributes
	switchPos [len(switches)]Pos

	// KeyUnreadable is set when the entry has a key that could not be read, which has been reported.
	KeyUnreadable bool
	Index         int    // in its list, from 0
	File          string // of the entry; differs between merged files
}

// LimitList is a rate_limits list.
type LimitList struct {
	Pos   Pos
	Items []Limit
}

// Limit is a rate_limit block, or an item of rate_limits.
type Limit struct {
	Pos           Pos
	Unit          string
	PerUnit       uint32
	Multiplier    uint32 // 0: not given
	Unlimited     bool
	Name          string
	Replaces      []Replaced
	HasUnit       bool
	HasPerUnit    bool
	Unreadable    bool // a field was refused, so that missing fields are not reported too
	UnitPos       Pos
	PerUnitPos    Pos
	MultiplierPos Pos
	NamePos       Pos
	Options       *LimitOptions // nil for most
}

// LimitOptions are the fields that few limits have. Texts are empty and positions zero where a field is missing.
type LimitOptions struct {
	HasAlgorithm bool
	Algorithm    string
	Burst        uint32 // 0: not given
	HasCalendar  bool
	Calendar     string
	Shadow       bool // of an item of rate_limits
	HasShadow    bool
	AlgorithmPos Pos
	BurstPos     Pos
	CalendarPos  Pos
}

// noOptions are the options of a limit without options. Never write to them.
var noOptions LimitOptions

func (l *Limit) options() *LimitOptions {
	if l.Options == nil {
		return &noOptions
	}
	return l.Options
}

// algorithm returns the limit's algorithm; the default if it is missing or unknown.
func (o *LimitOptions) algorithm() counter.Algorithm {
	a, _ := counter.ParseAlgorithm(o.Algorithm)
	return a
}

// burst returns the size of the limit's bucket.
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

// limit returns the entry's limit with an index.
func (e *Entry) limit(i int) *Limit {
	if e.List != nil {
		return &e.List.Items[i]
	}
	return e.Limit
}

// Replaced is one item of replaces.
type Replaced struct {
	Name string
	Pos  Pos
}

// Label returns the entry's part of a dotted path.
func (e *Entry) Label() string { return Label(e.Index, e.Key, e.shown()) }

// Label is Entry.Label for an entry that has not been read yet.
func Label(index int, key, value string) string {
	switch {
	case key == "":
		return fmt.Sprintf("descriptors[%d]", index)
	case value == "":
		return OneLine(key)
	}
	return OneLine(key + "_" + value)
}
