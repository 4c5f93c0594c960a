package limits

import (
	"fmt"

	"google.golang.org/protobuf/types/known/structpb"
)

// The tree that rulefile produces and check.go judges. Positions of xDS resources are zero. Texts are as written,
// defaults are not applied.

// Pos is a place in a file; line 0 means none.
type Pos struct{ Line, Column int32 }

// Document is one file or resource: one domain.
type Document struct {
	File    string
	Domain  string
	Pos     Pos // of the domain's name
	Failure FailureMode
	// FailurePos is where on_store_failure stands.
	FailurePos Pos
	Entries    []Entry
	// Unreadable is set when reading found errors that would cause others.
	Unreadable bool
}

// Entry is one descriptor of the configuration.
type Entry struct {
	Pos        Pos
	Key, Value string
	ValuePos   Pos
	Limit      *Limit
	Metadata   *structpb.Struct
	Children   []Entry

	Attributes
	PathAttributes
	switchPos [len(switches)]Pos

	// KeyUnreadable is set when a key stands there but could not be read; it has been reported.
	KeyUnreadable bool
	Index         int    // in its list, from 0
	File          string // where it stands, which differs between merged files
}

// Limit is a rate_limit block.
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
	Unreadable    bool // some field was refused, so what is missing is not reported too
	UnitPos       Pos
	PerUnitPos    Pos
	MultiplierPos Pos
	NamePos       Pos
}

// Replaced is one item of replaces.
type Replaced struct {
	Name string
	Pos  Pos
}

// Label is the part of a dotted path that stands for the entry.
func (e *Entry) Label() string { return Label(e.Index, e.Key, e.Value) }

// Label is as of Entry.Label, for an entry that is not read yet.
func Label(index int, key, value string) string {
	switch {
	case key == "":
		return fmt.Sprintf("descriptors[%d]", index)
	case value == "":
		return OneLine(key)
	}
	return OneLine(key + "_" + value)
}
