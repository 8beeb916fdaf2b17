// SPDX-License-Identifier: Apache-2.0
// The text that every wgmma instruction repeats: the list of its sums and their constraints for
// inline assembly. Included by the headers that define the instructions; wgmma_unlist.h ends it.
#define SAT_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SAT_D16(i) SAT_D4(i), SAT_D4(i + 4), SAT_D4(i + 8), SAT_D4(i + 12)
#define SAT_SUMS_32 SAT_D16(0), SAT_D16(16)
#define SAT_SUMS_64 SAT_SUMS_32, SAT_D16(32), SAT_D16(48)
#define SAT_SUMS_96 SAT_SUMS_64, SAT_D16(64), SAT_D16(80)
#define SAT_SUMS_128 SAT_SUMS_96, SAT_D16(96), SAT_D16(112)
#define SAT_LIST_32                                                      \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SAT_LIST_64                                                                  \
  SAT_LIST_32                                                                        \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SAT_LIST_96                                                                  \
  SAT_LIST_64                                                                        \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SAT_LIST_128                                                                             \
  SAT_LIST_96                                                                                    \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"
