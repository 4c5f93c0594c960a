package limits

// domainTree is all entries of one domain, from one file or several.
type domainTree struct {
	name    string
	files   []string
	failure FailureMode
	entries []entry
}

// check judges documents (rows 8 to 17 of spec 3.3) and joins those of one domain. What it returns
// may be compiled only when the report holds no problem.
func check(docs []document, merge bool, rep *report) []domainTree {
	var out []domainTree
	index := map[string]int{}
	for i := range docs {
		doc := &docs[i]
		if doc.domain == "" {
			rep.problem(place{file: doc.file, pos: doc.pos}, "", "domain is missing or empty; every file needs one")
		}
		at, seen := index[doc.domain]
		if !seen {
			at = len(out)
			index[doc.domain] = at
			out = append(out, domainTree{name: doc.domain})
		}
		d := &out[at]
		d.files = append(d.files, doc.file)
		d.failure = doc.failure
		d.entries = append(d.entries, doc.entries...)
	}
	return out
}
