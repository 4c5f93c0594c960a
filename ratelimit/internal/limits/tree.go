package limits

import (
	"fmt"

	"google.golang.org/protobuf/types/known/structpb"
)

// The tree that sources produce and check.go judges. YAML files come to it through read.go, xDS
// resources, whose positions are zero, through resource.go. Texts are as written, defaults are not applied.

// pos is a place in a file; line 0 means none.
type pos struct{ line, column int32 }

// document is one file or resource: one domain.
type document struct {
	file    string
	domain  string
	pos     pos // of the domain's name
	failure FailureMode
	// failurePos is where on_store_failure stands.
	failurePos pos
	entries    []entry
	// unreadable is set when reading found mistakes that would make others follow.
	unreadable bool
}

// entry is one descriptor of the configuration.
type entry struct {
	pos        pos
	key, value string
	valuePos   pos
	limit      *limit
	metadata   *structpb.Struct
	children   []entry

	shadow, quota, detailed, valueToMetric, share bool
	shadowPos, quotaPos, detailedPos, sharePos    pos

	// keyUnreadable is set when a key stands there but could not be read; it has been reported.
	keyUnreadable bool
	index         int    // in its list, from 0
	file          string // where it stands, which differs between merged files
}

// limit is a rate_limit block.
type limit struct {
	pos           pos
	unit          string
	perUnit       uint32
	multiplier    uint32 // 0: not given
	unlimited     bool
	name          string
	replaces      []replaced
	hasUnit       bool
	hasPerUnit    bool
	unreadable    bool // some field was refused, so what is missing is not reported too
	unitPos       pos
	perUnitPos    pos
	multiplierPos pos
	namePos       pos
}

// replaced is one item of replaces.
type replaced struct {
	name string
	pos  pos
}

// label is the part of a dotted path that stands for the entry.
func (e *entry) label() string { return label(e.index, e.key, e.value) }

func label(index int, key, value string) string {
	switch {
	case key == "":
		return fmt.Sprintf("descriptors[%d]", index)
	case value == "":
		return oneLine(key)
	}
	return oneLine(key + "_" + value)
}
