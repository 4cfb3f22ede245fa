package environments

import "strings"

// SuggestName returns the known name that got was probably meant to be, or "": the nearest one, the first of several as
// near, at most two slips away (one in a name of up to three bytes). A slip is a byte too many, too few or another, or
// two swapped; upper case is none.
func SuggestName(got string, known []string) string {
	nearest, least := "", 3
	got = strings.ToLower(got)
	for _, name := range known {
		allowed := 2
		if min(len(got), len(name)) <= 3 {
			allowed = 1
		}
		// Distances take the product of both lengths: spare it where the lengths alone are too far apart.
		if abs(len(got)-len(name)) > allowed {
			continue
		}
		if d := slips(got, strings.ToLower(name)); d <= allowed && d < least {
			nearest, least = name, d
		}
	}
	return nearest
}

// slips is the optimal string alignment distance of a and b, over bytes.
func slips(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+differ(a[i-1], b[j-1]))
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

func differ(a, b byte) int {
	if a == b {
		return 0
	}
	return 1
}

func abs(n int) int { return max(n, -n) }
